"""Reads rows from `.jsonl .json .csv .parquet`, one at a time, in bounded memory, with line numbers.

`scan_dataset` looks at every selected row before anything is spent and reports all bad ones at once;
`read_rows` then streams the good ones. Neither reads further than the selection needs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from osmosis.errors import DatasetError
from osmosis.records.dataset import FORMATS, Row
from osmosis.records.plan import Selection

NAMED = ("system_prompt", "user_prompt", "ground_truth", "label", "metadata", "messages")
_SHOWN = 20
_BATCH_ROWS = 1024
_USUAL = 64
_BOM = b"\xef\xbb\xbf"

Raw = tuple[int | None, Any]
"""Line number, and the row's object or the error that it could not be read."""


@dataclass(slots=True)
class BadRow:
    index: int
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else f"row {self.index}: {self.message}"


@dataclass(slots=True)
class DatasetFacts:
    """What a scan found."""

    selected: int = 0
    """Good rows in the selection."""
    rows: int | None = None
    """Rows in the whole file; None when the scan did not need to reach its end."""
    sha256: str | None = None
    """Of the file; None when the scan did not reach its end."""
    rows_hash: str = ""
    """Of the selected rows, in order."""
    bad: list[BadRow] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    """Of the first row."""

    def refuse_bad(self, path: Path) -> None:
        """Raises `DatasetError` naming the bad rows, when there are any."""
        if not self.bad:
            return
        shown = "; ".join(str(bad) for bad in self.bad[:_SHOWN])
        more = f" and {len(self.bad) - _SHOWN} more" if len(self.bad) > _SHOWN else ""
        raise DatasetError(
            f"{path}: {len(self.bad)} bad rows: {shown}{more}",
            hint="fix them, or leave them out with --skip-bad-rows",
            issues=[{"key": f"row {bad.index}", "message": str(bad), "where": str(path)} for bad in self.bad[:1000]],
        )


def scan_dataset(
    path: Path,
    selection: Selection | None = None,
    *,
    require_ground_truth: bool = False,
    row_hashes: dict[int, str] | None = None,
) -> DatasetFacts:
    """Checks every selected row. Reads to the end of the file only when the selection does.

    `row_hashes` is filled with the hash of every good row, for whoever compares them.
    """
    facts = DatasetFacts()
    digest = hashlib.sha256()
    end = _End()
    for index, line, data in _selected(path, selection or Selection(), end):
        problem = _problem(data, require_ground_truth)
        if problem:
            facts.bad.append(BadRow(index, line, problem))
            continue
        facts.columns = facts.columns or list(data)
        facts.selected += 1
        found = row_hash(data)
        digest.update(found.encode())
        if row_hashes is not None:
            row_hashes[index] = found
    facts.rows_hash = digest.hexdigest()
    if end.rows is not None:
        facts.rows, facts.sha256 = end.rows, file_hash(path)
    if selection and selection.rows and end.rows is not None:
        beyond = [i for i in selection.rows if i >= end.rows]
        if beyond:
            raise DatasetError(
                f"{path} has {end.rows} rows; there is no row {', '.join(map(str, beyond[:5]))}",
                hint="row indices start at 0",
            )
    return facts


def read_rows(
    path: Path, selection: Selection | None = None, *, skip_bad: bool = False, require_ground_truth: bool = False
) -> Iterator[Row]:
    """The selected rows in file order. A bad row raises `DatasetError`, or is left out with `skip_bad`."""
    for index, line, data in _selected(path, selection or Selection(), _End()):
        problem = _problem(data, require_ground_truth)
        if problem is None:
            yield Row(index=index, data=data, line=line)
        elif not skip_bad:
            raise DatasetError(f"{path}: {BadRow(index, line, problem)}", hint="--skip-bad-rows leaves bad rows out")


def count_rows(path: Path) -> int:
    """Rows in the file, bad ones included."""
    return sum(1 for _ in _reader(path)(path))


def row_hash(data: dict[str, Any]) -> str:
    """A short digest of a row's content; the order of its columns does not matter."""
    return hashlib.sha256(orjson.dumps(data, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()[:16]


def file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@dataclass(slots=True)
class _End:
    """How many rows the file has, once its end was reached."""

    rows: int | None = None


def _selected(path: Path, selection: Selection, end: _End) -> Iterator[tuple[int, int | None, Any]]:
    read = _reader(path)
    wanted: set[int] | None = None
    first, last = selection.offset, None
    if selection.rows is not None:
        wanted = set(selection.rows)
        first, last = 0, max(wanted, default=-1)
    elif selection.limit is not None:
        last = first + selection.limit - 1
    if selection.sample is not None and selection.rows is None:
        wanted = _draw(path, selection, first, last)
        last = max(wanted, default=-1)
    index = -1
    usual: set[tuple[str, ...]] = set()
    for line, data in read(path):
        index += 1
        if last is not None and index > last:
            return
        if index < first or (wanted is not None and index not in wanted):
            continue
        yield index, line, _normalise(data, usual)
    end.rows = index + 1


def _draw(path: Path, selection: Selection, first: int, last: int | None) -> set[int]:
    total = count_rows(path)
    population = range(first, total if last is None else min(total, last + 1))
    size = min(len(population), max(1, round(len(population) * (selection.sample or 0.0))))
    return set(random.Random(selection.seed).sample(population, size))


def _reader(path: Path) -> Callable[[Path], Iterator[Raw]]:
    suffix = path.suffix.lower().lstrip(".")
    readers = {"jsonl": _jsonl, "json": _json, "csv": _csv, "parquet": _parquet}
    if suffix not in readers:
        raise DatasetError(f"{path}: unknown format {path.suffix!r}", hint=f"use one of: {', '.join(FORMATS)}")
    if not path.is_file():
        raise DatasetError(f"there is no dataset file {path}", hint="check -d/--dataset")
    return readers[suffix]


def _jsonl(path: Path) -> Iterator[Raw]:
    with path.open("rb") as source:
        for number, line in enumerate(source, 1):
            if number == 1 and line.startswith(_BOM):
                line = line[3:]
            if line.isspace():
                continue
            try:
                yield number, orjson.loads(line)
            except orjson.JSONDecodeError as error:
                yield number, ValueError(f"not JSON: {error}")


def _json(path: Path) -> Iterator[Raw]:
    import ijson

    with path.open("rb") as source:
        start = len(_BOM) if source.read(3) == _BOM else 0
        source.seek(start)
        first = next((byte for block in iter(lambda: source.read(4096), b"") if (byte := block.lstrip()[:1])), b"")
        if first not in (b"", b"["):  # an object or a number would be read as a file without rows
            raise DatasetError(f"{path}: not a JSON array of objects: it begins with {first.decode('latin-1')!r}")
        source.seek(start)
        try:
            for data in ijson.items(source, "item", use_float=True):
                yield None, data
        except ijson.JSONError as error:
            raise DatasetError(f"{path}: not a JSON array of objects: {error}") from error


def _csv(path: Path) -> Iterator[Raw]:
    with (
        path.open("rb") as raw,
        io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        rows = csv.reader(text)
        header = next(rows, None)
        if header is None:
            return
        if len(set(header)) != len(header):
            raise DatasetError(f"{path}:1: a column name appears twice")
        while True:
            try:
                values = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield rows.line_num, ValueError(str(error))
                continue
            if not values:
                continue
            if len(values) != len(header):
                yield rows.line_num, ValueError(f"{len(values)} values for {len(header)} columns")
            elif any("\udc80" <= c <= "\udcff" for value in values for c in value):
                yield rows.line_num, ValueError("not UTF-8")
            else:
                yield rows.line_num, {k: v for k, v in zip(header, values, strict=True) if v != ""}


def _parquet(path: Path) -> Iterator[Raw]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as source:
            for batch in source.iter_batches(_BATCH_ROWS):
                for data in batch.to_pylist():
                    yield None, data
    except pyarrow.ArrowException as error:
        raise DatasetError(f"{path}: not a readable Parquet file: {error}") from error


def _normalise(data: Any, usual: set[tuple[str, ...]]) -> Any:
    """Known columns in lower case, `metadata` as an object; `ValueError` as data when that fails.

    `usual` collects the column lists that need neither: nearly all rows of a file have the same one.
    """
    if not isinstance(data, dict):
        return data
    names = tuple(data)
    if names in usual:
        return data
    renamed = {key: key.strip().lower() for key in data if key not in NAMED and key.strip().lower() in NAMED}
    if renamed:
        names = tuple(renamed.get(key, key) for key in data)
        if len(set(names)) != len(names):
            return ValueError("two columns differ only in case")
        data = dict(zip(names, data.values(), strict=True))
    elif "metadata" not in data and len(usual) < _USUAL:
        usual.add(names)
    if isinstance(data.get("metadata"), str):
        try:
            data = {**data, "metadata": orjson.loads(data["metadata"])}
        except orjson.JSONDecodeError:
            return ValueError("metadata is text that is not JSON")
    return data


def _problem(data: Any, require_ground_truth: bool) -> str | None:
    if isinstance(data, ValueError):
        return str(data)
    if not isinstance(data, dict):
        return f"a row must be an object, this is a {type(data).__name__}"
    prompt = data.get("user_prompt")
    if prompt is None:
        if not data.get("messages") and not isinstance(data.get("metadata"), dict):
            return "no user_prompt (nor messages, nor metadata)"
    elif not isinstance(prompt, str) or not prompt or prompt.isspace():
        return "user_prompt must be text that is not blank"
    if not isinstance(data.get("system_prompt"), (str, type(None))):
        return "system_prompt must be text"
    messages = data.get("messages")
    if messages is not None and not (
        isinstance(messages, list) and all(isinstance(m, dict) and m.get("role") for m in messages)
    ):
        return "messages must be a list of objects with a role"
    if require_ground_truth:
        truth = data.get("ground_truth", data.get("label"))
        if truth is None or not str(truth).strip():
            return "no ground_truth"
    return None
