"""An evaluation whose rollouts are read into an index of this machine: what is the same wherever they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

from osmosis.records.history import RowCount
from osmosis.records.run import MetricPoint
from osmosis.viewer.source import CheckpointLine, RolloutTable


class IndexedRun(ABC):
    """The part of `viewer.source.RunSource` that the index answers."""

    @abstractmethod
    def read_table(self) -> RolloutTable:
        """The index as far as it is filled; waits a little for more."""

    @cached_property
    def _table(self) -> RolloutTable:
        return self.read_table()

    def table(self) -> RolloutTable:
        return self._table

    def whole(self, *, wait: bool = False) -> bool:
        table = self._table
        while wait and not table.progress.complete:
            table = self.read_table()
        return table.progress.complete

    def rewards(self) -> Sequence[float]:
        return self._table.search.rewards()

    def row(self, key: str) -> RowCount | None:
        return self._table.search.row_count(key)

    def points(self) -> Sequence[MetricPoint]:
        return ()

    def checkpoints(self) -> Sequence[CheckpointLine]:
        return ()
