import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from osmosis.datasets.row_file import KnownRows, read_row_file
from osmosis.datasets.scan import read_rows
from osmosis.jobs.context import JobContext
from osmosis.records.run.plan import Selection
from osmosis.records.run.rows import Key, Row

ROWS_FILE = "rows.jsonl"


class JobRows:
    def __init__(self, path: Path, known: KnownRows, *, sent: bool) -> None:
        self._path = path
        self._sent = sent
        self.known = known

    @classmethod
    async def read(cls, context: JobContext, stored: Iterable[Key] = ()) -> "JobRows":
        """Read the keys, fetching rows that are not on this machine. Raise `DatasetError`."""
        spec = context.spec
        if spec.dataset_path:
            path, keys = Path(spec.dataset_path), list({row_key for _, row_key, _ in stored})
            known = await asyncio.to_thread(KnownRows.of_dataset, path, spec.rows, keys)
            return cls(path, known.only(spec.own_rows), sent=False)
        path = context.work_dir / ROWS_FILE
        if not path.exists():
            await context.reporter.save("dataset", path)
        return cls(path, await asyncio.to_thread(KnownRows.of_row_file, path), sent=True)

    def all(self, rows: Sequence[int]) -> Iterator[Row]:
        if self._sent:
            return read_row_file(self._path, rows)
        return read_rows(self._path, Selection(rows=list(rows)), by_id=self.known.by_id)

    async def at(self, indices: Sequence[int]) -> list[Row]:
        rows = await asyncio.to_thread(lambda: list(self.all(indices)))
        return [replace(row, key=self.known.keys.at[row.index]) for row in rows]
