"""What local runs of generation 0.2 raise. All are part of the one tree of errors."""

from __future__ import annotations

from osmosis.errors import OsmosisError


class LocalExecutionError(OsmosisError):
    """Base of everything below."""


class DatasetValidationError(LocalExecutionError):
    """A row lacks a column or has an empty one."""

    code = "VALIDATION"


class DatasetParseError(LocalExecutionError):
    """A dataset file cannot be read."""

    code = "VALIDATION"


class ToolValidationError(LocalExecutionError):
    """A tool's schema cannot be offered to a model."""

    code = "VALIDATION"


class ProviderError(LocalExecutionError):
    """The model could not be asked; `category` says why."""

    code = "MODEL_ERROR"

    def __init__(self, message: str, category: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, category=category)
        self.category = category


class EvalFnError(LocalExecutionError):
    """An eval function cannot be loaded, has another shape, or gave no number."""

    code = "VALIDATION"
