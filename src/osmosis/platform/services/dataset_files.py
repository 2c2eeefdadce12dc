"""Reading and checking a dataset file: streaming, bounded memory, every finding with its line.

Two modes. With a `metadata` column every row needs a JSON object there; without one every row needs a prompt and
a ground truth. Looks at data only: nothing in a file is ever run, and the file is not changed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis.records.dataset import MIN_ROWS

MAX_LISTED = 5
PREVIEW_ROWS = 20
MAX_CELL = 2_000
MAX_LINE = 64 * 1024 * 1024
INT64 = range(-(2**63), 2**63)


class BadRow(Exception):
    """A row that cannot be read at all."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where
        self.message = message


@dataclass(slots=True)
class FileFacts:
    """What was found in a file."""

    rows: int = 0
    preview: list[dict[str, Any]] = field(default_factory=list)
    issues: list[dict[str, str]] = field(default_factory=list)
    """The first findings, as `{"key", "message", "where"}`."""
    found: int = 0
    """All findings, listed or not."""

    @property
    def ok(self) -> bool:
        return self.found == 0

    def add(self, where: str, key: str, message: str) -> None:
        self.found += 1
        if len(self.issues) < MAX_LISTED:
            self.issues.append({"key": key, "where": where, "message": f"{where}: {message}" if where else message})


def check_file(path: Path, file_format: str) -> FileFacts:
    """Read the whole file once. Never raises for what is in it: problems are in the result."""
    facts = FileFacts()
    rules: _Rules | None = None
    for where, row in _guarded(_rows(path, file_format), facts):
        if rules is None:
            rules = _Rules(list(row), facts, same_keys=file_format in ("jsonl", "json"))
        facts.rows += 1
        if len(facts.preview) < PREVIEW_ROWS:
            facts.preview.append(_shown(row))
        rules.check(where, row)
    if not facts.found and facts.rows < MIN_ROWS:
        facts.add("", "rows", f"the file has {facts.rows} rows; at least {MIN_ROWS} are needed")
    return facts


def _guarded(rows: Iterator[tuple[str, dict[str, Any]]], facts: FileFacts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows that could be read; the first that could not ends the reading, since what follows has no meaning."""
    try:
        yield from rows
    except BadRow as error:
        facts.add(error.where, "", error.message)
    except UnicodeDecodeError as error:
        facts.add(f"row {facts.rows + 1}", "", f"not UTF-8 text ({error.reason})")


def _rows(path: Path, file_format: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = {"jsonl": _jsonl, "json": _json, "csv": _csv, "parquet": _parquet}[file_format]
    return reader(path)


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE:
                raise BadRow(f"line {number}", f"longer than {MAX_LINE // 2**20} MiB")
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if not text:
                continue
            try:
                row = json.loads(text, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                raise BadRow(f"line {number}", f"not JSON ({_why(error)})") from None
            if not isinstance(row, dict):
                raise BadRow(f"line {number}", f"a row must be a JSON object, this is {_type_name(row)}")
            yield f"line {number}", row


def _json(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import ijson

    with path.open("rb") as file:
        number = 0
        try:
            for row in ijson.items(file, "item", use_float=True):
                number += 1
                if not isinstance(row, dict):
                    raise BadRow(f"row {number}", f"a row must be a JSON object, this is {_type_name(row)}")
                yield f"row {number}", row
        except ijson.JSONError as error:
            raise BadRow(f"row {number + 1}", f"not JSON ({error})") from None


def _csv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    csv.field_size_limit(MAX_LINE)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header: list[str] | None = None
        line = 1
        try:
            for cells in reader:
                where, line = f"line {line}", reader.line_num + 1
                if not cells:
                    continue
                if header is None:
                    header = _header(cells, where)
                    continue
                if len(cells) != len(header):
                    raise BadRow(where, f"{len(cells)} columns, the header has {len(header)}")
                yield where, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise BadRow(f"line {line}", f"not CSV ({error})") from None


def _header(cells: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise BadRow(where, f"columns named twice: {', '.join(repr(name) for name in doubled)}")
    return names


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=2000):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadRow(f"row {number + 1}" if number else "", f"not a readable Parquet file ({error})") from None


class _Rules:
    """The rules of one file; which ones apply is decided by the columns of its first row."""

    def __init__(self, columns: list[str], facts: FileFacts, *, same_keys: bool) -> None:
        self.facts = facts
        self.columns = set(columns)
        self.same_keys = same_keys
        self.metadata = "metadata" in self.columns
        self.types: dict[str, str] = {}
        self.missing = False
        if not self.metadata:
            self._need_columns()

    def _need_columns(self) -> None:
        if "user_prompt" not in self.columns:
            self._no_column("user_prompt", "no column 'user_prompt' (and no column 'metadata')")
        if not self.columns & {"ground_truth", "label"}:
            self._no_column("ground_truth", "no column 'ground_truth' or 'label' (and no column 'metadata')")

    def _no_column(self, key: str, message: str) -> None:
        self.missing = True
        self.facts.add("", key, message)

    def check(self, where: str, row: dict[str, Any]) -> None:
        if self.missing:
            return
        if self.same_keys and set(row) != self.columns:
            self._other_keys(where, set(row))
        elif self.metadata:
            self._check_metadata(where, row.get("metadata"))
        else:
            truth = "ground_truth" if "ground_truth" in self.columns else "label"
            for key in ("user_prompt", truth):
                if _is_empty(row.get(key)):
                    self.facts.add(where, key, f"'{key}' is empty")

    def _other_keys(self, where: str, keys: set[str]) -> None:
        parts = []
        if lost := sorted(self.columns - keys):
            parts.append(f"lacks {', '.join(repr(key) for key in lost)}")
        if new := sorted(keys - self.columns):
            parts.append(f"adds {', '.join(repr(key) for key in new)}")
        self.facts.add(where, "", f"other keys than the first row: {' and '.join(parts)}")

    def _check_metadata(self, where: str, value: Any) -> None:
        if isinstance(value, str):
            try:
                value = json.loads(value, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                self.facts.add(where, "metadata", f"'metadata' is not JSON ({_why(error)})")
                return
        if not isinstance(value, dict) or not value:
            self.facts.add(where, "metadata", "'metadata' must be a non-empty JSON object")
            return
        for path, problem in self._walk("metadata", value):
            self.facts.add(where, path, problem)

    def _walk(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        """Problems of a value: empty objects, integers beyond int64, another type than in earlier rows."""
        if value is None:
            return
        kind = _type_name(value)
        known = self.types.setdefault(path, kind)
        if kind != known:
            yield path, f"'{path}' is {kind}, in earlier rows {known}"
        elif isinstance(value, dict):
            if not value:
                yield path, f"'{path}' is an empty object"
            for key, inner in value.items():
                yield from self._walk(f"{path}.{key}", inner)
        elif isinstance(value, list):
            for inner in value:
                yield from self._walk(f"{path}[]", inner)
        elif isinstance(value, int) and not isinstance(value, bool) and value not in INT64:
            yield path, f"'{path}' does not fit 64 bits"


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _type_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a preview shows it: JSON values, long text cut and saying so."""
    return {str(key): _shown_value(value) for key, value in row.items()}


def _shown_value(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_CELL else f"{value[:MAX_CELL]} ... ({len(value)} characters)"
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, dict):
        return _shown(value)
    if isinstance(value, list):
        return [_shown_value(inner) for inner in value[:100]]
    return str(value)
