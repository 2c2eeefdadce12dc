"""Rows of stored datasets, which a process of its own reads."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from osmosis.datasets.row_file import RowPart, read_row_file
from osmosis.platform.objects.store import Objects
from osmosis.records.run.rows import Row
from osmosis.sandbox.limited_reader import read_with

BYTES_PER_S = 1_000_000
READ_S = 60.0


def iterate_rows(objects: Objects, parts: Sequence[RowPart]) -> Iterator[Row]:
    """Yield rows of stored datasets. Raise OsmosisError if they cannot be read."""
    with TemporaryDirectory(prefix="osmosis-rows-") as folder:
        yield from read_row_file(make_row_file(objects, parts, Path(folder)))


def make_row_file(objects: Objects, parts: Sequence[RowPart], folder: Path, stored: Sequence[str] = ()) -> Path:
    """Write a file of rows of stored datasets, which a process of its own reads. Raise OsmosisError if it cannot."""
    files, target = [objects.fetch(path) for path, *_ in parts], folder / "rows"
    named = [
        (str(file), start, prefix, list(rows)) for file, (_, start, prefix, rows) in zip(files, parts, strict=True)
    ]
    request = {"parts": named, "target": str(target), "stored": stored}
    seconds = READ_S + sum(file.stat().st_size for file in files) / BYTES_PER_S
    read_with(
        ["-m", "osmosis.datasets.row_file"], request, what="the dataset", files=files, write=[folder], seconds=seconds
    )
    return target
