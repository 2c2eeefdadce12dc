"""The rows of a training run: read when a step needs them, each with the key that the whole selection gives it.

A key may depend on the rows before it (the second of two equal rows), so keys come from one scan of the selection and
not from the few rows of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import read_rows, scan_dataset
from osmosis.records.dataset import Row
from osmosis.records.plan import Selection


class TrainingRows:
    """Use `read`; `at` gives rows."""

    def __init__(self, path: Path, keys: SelectedRows) -> None:
        self._path = path
        self._keys = keys

    @classmethod
    async def read(cls, path: Path, selected: Sequence[int]) -> TrainingRows:
        """Scans the selection once. Raises `DatasetError` for a row that cannot be used."""
        keys = SelectedRows()
        await asyncio.to_thread(scan_dataset, path, Selection(rows=list(selected)), rows=keys)
        return cls(path, keys)

    async def at(self, indices: Sequence[int]) -> list[Row]:
        """These rows, in the order of the file."""
        selection = Selection(rows=list(indices))
        rows = await asyncio.to_thread(lambda: list(read_rows(self._path, selection)))
        return [row.model_copy(update={"key": self._keys.at[row.index]}) for row in rows]
