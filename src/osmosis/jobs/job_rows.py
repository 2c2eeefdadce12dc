"""The rows of a job, each with the key that the whole selection gives it: from the dataset file where the job is on
the platform's machine, else as the platform sends them.

A key may depend on the rows before it (the second of two equal rows), so keys come from one scan of the selection and
not from the few rows that a job or a step has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from osmosis.datasets.row_file import KnownRows, read_row_file
from osmosis.datasets.scan import read_rows
from osmosis.records.dataset import Row
from osmosis.records.keys import Key
from osmosis.records.plan import Selection

from .job import JobContext

ROWS_FILE = "rows.jsonl"


class JobRows:
    """Use `read`; `all` and `at` give rows."""

    def __init__(self, path: Path, known: KnownRows, *, sent: bool) -> None:
        self._path = path
        self._sent = sent
        self.known = known

    @classmethod
    async def read(cls, context: JobContext, stored: Iterable[Key] = ()) -> JobRows:
        """Learns the keys, and brings the rows to this machine first if they are not there. `stored` are the rollouts
        that the platform has. Raises `DatasetError` for a row that cannot be used."""
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
        """These rows, in the order of the file, as they are asked for."""
        if self._sent:
            return read_row_file(self._path, rows)
        return read_rows(self._path, Selection(rows=list(rows)), by_id=self.known.by_id)

    async def at(self, indices: Sequence[int]) -> list[Row]:
        """These rows, in the order of the file."""
        rows = await asyncio.to_thread(lambda: list(self.all(indices)))
        return [replace(row, key=self.known.keys.at[row.index]) for row in rows]
