"""One attempt at one row, before it has a result, and the function that turns it into a rollout."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from osmosis.records.dataset import Row
from osmosis.records.keys import Key, place_key
from osmosis.records.rollout import Rollout


@dataclass(slots=True, eq=False)
class Task:
    """One attempt at one row. `stage` is where it is now, for the watchdog."""

    row: Row
    attempt: int
    rollout_id: str
    step: int = 0
    stage: str = "waiting"
    since: float = field(default_factory=time.monotonic)
    """When the stage began, on the monotonic clock."""

    @property
    def key(self) -> Key:
        return (self.step, self.row.key or place_key(self.row.index), self.attempt)

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.since = time.monotonic()


RolloutFn = Callable[[Task], Awaitable[Rollout]]
"""Never raises for a rollout's own failure: that is data in the rollout."""
