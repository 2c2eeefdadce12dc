"""Errors of local runs."""

from osmosis.classic.errors import (
    DatasetParseError as DatasetParseError,
)
from osmosis.classic.errors import (
    DatasetValidationError as DatasetValidationError,
)
from osmosis.classic.errors import (
    LocalExecutionError as LocalExecutionError,
)
from osmosis.classic.errors import (
    ProviderError as ProviderError,
)
from osmosis.classic.errors import (
    ToolValidationError as ToolValidationError,
)

__all__ = [
    "DatasetParseError",
    "DatasetValidationError",
    "LocalExecutionError",
    "ProviderError",
    "ToolValidationError",
]
