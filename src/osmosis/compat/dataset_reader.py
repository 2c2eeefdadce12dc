import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from osmosis.base.jsonable import JsonObject
from osmosis.datasets.reader import count_rows
from osmosis.datasets.rules import NOT_CSV, NOT_JSON, NOT_PARQUET, NOT_UTF8, ROW_LENGTH
from osmosis.datasets.scan import read_rows
from osmosis.errors import DatasetError, OsmosisError
from osmosis.records.protocol.v02 import RolloutRequest
from osmosis.records.run.plan import Selection
from osmosis.records.run.rows import FORMATS

REQUIRED_COLUMNS = ("ground_truth", "user_prompt", "system_prompt")
_UNREADABLE = frozenset(rule.code for rule in (NOT_JSON, NOT_CSV, NOT_PARQUET, NOT_UTF8, ROW_LENGTH))


class DatasetRow(TypedDict, total=False):
    ground_truth: str
    user_prompt: str
    system_prompt: str


class DatasetReader:
    """Reads the rows of a file; `required` columns must be non-blank text. Raises `FileNotFoundError`,
    `DatasetParseError` for another ending or unreadable content, `DatasetValidationError` for a row."""

    def __init__(self, path: str | os.PathLike[str], *, required: tuple[str, ...] = REQUIRED_COLUMNS) -> None:
        self.path = Path(path)
        self.required = required
        if not self.path.is_file():
            raise FileNotFoundError(f"no dataset at {self.path}")
        if self.path.suffix.lower().lstrip(".") not in FORMATS:
            formats = ", ".join(f".{ending}" for ending in FORMATS)
            raise DatasetParseError(f"{self.path}: cannot read {self.path.suffix or 'this'} files; use {formats}")

    def __len__(self) -> int:
        return count_rows(self.path)

    def read(self, limit: int | None = None, offset: int = 0) -> list[JsonObject]:
        return list(self.iter_rows(limit=limit, offset=offset))

    def iter_rows(self, limit: int | None = None, offset: int = 0) -> Iterator[JsonObject]:
        try:
            for row in read_rows(self.path, Selection(limit=limit, offset=offset)):
                yield self._checked(row.index, row.data)
        except DatasetError as exc:
            rule = exc.details.get("rule")
            if rule is None or rule in _UNREADABLE:
                raise DatasetParseError(exc.message, hint=exc.hint) from exc
            raise DatasetValidationError(f"Row {exc.details['row']}: {exc.details['reason']}", hint=exc.hint) from exc

    def _checked(self, index: int, data: JsonObject) -> JsonObject:
        row = {name.lower() if name.lower() in REQUIRED_COLUMNS else name: value for name, value in data.items()}
        missing = [name for name in self.required if name not in row]
        if missing:
            raise DatasetValidationError(f"Row {index}: missing required columns: {missing}")
        for name in self.required:
            if not isinstance(row[name], str) or not row[name].strip():
                raise DatasetValidationError(f"Row {index}: {name} must be a non-empty string, got {row[name]!r}")
        return row


def dataset_row_to_request(
    row: Mapping[str, object],
    row_index: int,
    max_turns: int = 10,
    max_tokens_total: int = 4096,
    completion_params: Mapping[str, object] | None = None,
    rollout_id_prefix: str = "local",
    rollout_id: str | None = None,
    metadata_overrides: Mapping[str, object] | None = None,
) -> RolloutRequest:
    """Build the request a trainer would send for this row: system and user message, every other column as metadata."""
    messages = [
        {"role": role, "content": row[column]}
        for role, column in (("system", "system_prompt"), ("user", "user_prompt"))
        if row.get(column)
    ]
    return RolloutRequest(
        rollout_id=rollout_id or f"{rollout_id_prefix}-{row_index}",
        server_url="http://local-rollout.local",
        messages=messages,
        completion_params=completion_params or {},
        max_turns=max_turns,
        max_tokens_total=max_tokens_total,
        metadata={
            "ground_truth": row.get("ground_truth"),
            "row_index": row_index,
            **{name: value for name, value in row.items() if name not in REQUIRED_COLUMNS},
            **(metadata_overrides or {}),
        },
    )


class LocalExecutionError(OsmosisError): ...


class DatasetValidationError(LocalExecutionError):
    code = "VALIDATION"


class DatasetParseError(LocalExecutionError):
    code = "VALIDATION"


class ToolValidationError(LocalExecutionError):
    code = "VALIDATION"


class ProviderError(LocalExecutionError):
    code = "MODEL_ERROR"

    def __init__(self, message: str, category: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, category=category)
        self.category = category


class EvalFnError(LocalExecutionError):
    code = "VALIDATION"
