"""Read `.jsonl .json .csv .parquet` row by row, in bounded memory; what is unreadable is a `RowFault` in its place."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson

from osmosis.datasets.rules import (
    COLUMN_COUNT,
    COLUMN_TWICE,
    NOT_CSV,
    NOT_JSON,
    NOT_PARQUET,
    NOT_UTF8,
    ROW_LENGTH,
    RowFault,
)
from osmosis.errors import DatasetError
from osmosis.records.run.rows import FORMATS

MAX_LINE = 64 * 1024 * 1024
_BATCH_ROWS = 1024
_BOM = b"\xef\xbb\xbf"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")

Raw = tuple[int | None, object, bytes | None]
"""One-based line, where there are lines; the parsed row or a `RowFault`; the line's bytes in a .jsonl file."""


@dataclass(slots=True)
class DatasetFile:
    path: Path
    format: str
    header: list[str] = field(default_factory=list)  # the columns, once reading has begun, in formats with a header

    def rows(self) -> Iterator[Raw]:
        return _READERS[self.format](self)


def open_source(path: Path) -> DatasetFile:
    suffix = path.suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise DatasetError(f"{path}: unknown format {path.suffix!r}", hint=f"use one of: {', '.join(FORMATS)}")
    if not path.is_file():
        raise DatasetError(f"no such dataset file: {path}", hint="check -d/--dataset")
    return DatasetFile(path, suffix)


def count_rows(path: Path) -> int:
    return sum(1 for _ in open_source(path).rows())


def _jsonl(source: DatasetFile) -> Iterator[Raw]:
    loads, broken = orjson.loads, orjson.JSONDecodeError
    with source.path.open("rb") as file:
        # Where no line can be too long, reading without a limit is faster.
        bounded = source.path.stat().st_size >= MAX_LINE
        lines = iter(partial(file.readline, MAX_LINE), b"") if bounded else file
        for number, line in enumerate(lines, 1):
            if number == 1 and line.startswith(_BOM):
                line = line[3:]
            if line.isspace():
                continue
            try:
                yield number, loads(line), line
            except broken as error:
                if len(line) == MAX_LINE:
                    yield number, RowFault(ROW_LENGTH, f"longer than {MAX_LINE // 2**20} MiB", ends=True), None
                    return
                yield number, _not_json(line, error), None


def _not_json(line: bytes, error: orjson.JSONDecodeError) -> RowFault:
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return RowFault(NOT_UTF8, f"not UTF-8 text ({wrong.reason})")
    return RowFault(NOT_JSON, f"not JSON: {error}")


def _json(source: DatasetFile) -> Iterator[Raw]:
    import ijson

    with source.path.open("rb") as file:
        start = len(_BOM) if file.read(3) == _BOM else 0
        file.seek(start)
        first = next((byte for block in iter(lambda: file.read(4096), b"") if (byte := block.lstrip()[:1])), b"")
        if first not in (b"", b"["):  # an object or a number would be read as a file without rows
            begins = first.decode("latin-1")
            yield None, RowFault(NOT_JSON, f"not a JSON array of objects: it begins with {begins!r}", ends=True), None
            return
        file.seek(start)
        try:
            for data in ijson.items(file, "item", use_float=True):
                yield None, data, None
        except (ijson.JSONError, UnicodeDecodeError) as error:
            reason = str(error.args[0] if error.args else error).split("\n")[0]
            yield None, RowFault(NOT_JSON, f"not a JSON array of objects: {reason}", ends=True), None


def _csv(source: DatasetFile) -> Iterator[Raw]:
    csv.field_size_limit(MAX_LINE)
    with (
        source.path.open("rb") as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        reader = csv.reader(text, strict=True)
        line = 1
        while True:
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, RowFault(NOT_CSV, f"not CSV ({error})"), None
                line = reader.line_num + 1
                continue
            if values and not source.header:
                source.header.extend(values)
                names = [name.strip() for name in values]
                if doubled := sorted(name for name, count in Counter(names).items() if count > 1):
                    twice = f"duplicate columns: {', '.join(map(repr, doubled))}"
                    yield line, RowFault(COLUMN_TWICE, twice, ends=True), None
                    return
            elif values:
                yield line, _record(source.header, values), None
            line = reader.line_num + 1


def _record(header: list[str], values: list[str]) -> object:
    if len(values) != len(header):
        return RowFault(COLUMN_COUNT, f"{len(values)} columns, the header has {len(header)}")
    if any(not value.isascii() and _NOT_UTF8.search(value) for value in values):
        return RowFault(NOT_UTF8, "not UTF-8 text")
    return {name: value for name, value in zip(header, values, strict=True) if value != ""}


def _parquet(source: DatasetFile) -> Iterator[Raw]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(source.path) as file:
            source.header.extend(file.schema_arrow.names)
            for batch in file.iter_batches(_BATCH_ROWS):
                for data in batch.to_pylist():
                    yield None, data, None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        yield None, RowFault(NOT_PARQUET, f"not a readable Parquet file: {error}", ends=True), None


_READERS: dict[str, Callable[[DatasetFile], Iterator[Raw]]] = {
    "jsonl": _jsonl,
    "json": _json,
    "csv": _csv,
    "parquet": _parquet,
}
