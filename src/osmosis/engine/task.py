"""One attempt at one row, before it has a result, and the function that turns it into a rollout."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from osmosis.records.dataset import Row
from osmosis.records.rollout import Rollout


@dataclass(slots=True, eq=False)
class Task:
    """One attempt at one row. `stage` is where it is now, for the watchdog."""

    row: Row
    attempt: int
    rollout_id: str
    stage: str = "waiting"
    since: float = field(default_factory=time.monotonic)
    """When the stage began, on the monotonic clock."""

    @property
    def key(self) -> tuple[int, int]:
        return (self.row.index, self.attempt)

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.since = time.monotonic()


RolloutFn = Callable[[Task], Awaitable[Rollout]]
"""Never raises for a rollout's own failure: that is data in the rollout."""
