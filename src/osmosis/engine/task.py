"""One attempt at one row, before it has a result, and the function that turns it into a rollout."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import field

from osmosis.base.light_dataclass import dataclass
from osmosis.records.dataset import Row
from osmosis.records.keys import Key, place_key
from osmosis.records.rollout import Rollout
from osmosis.sdk.driven import LoopUse


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
    loop_use: LoopUse | None = None
    """Who uses the event loop of this run."""
    held_s: float = 0.0
    """Seconds for which this attempt kept the event loop from everybody else."""
    left_behind: list[str] = field(default_factory=list)
    """What went on after its cancellation and was left: the agent, a score function."""

    @property
    def name(self) -> str:
        return f"row {self.row.index} attempt {self.attempt}"

    @property
    def key(self) -> Key:
        return (self.step, self.row.key or place_key(self.row.index), self.attempt)

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.since = time.monotonic()


RolloutFn = Callable[[Task], Awaitable[Rollout]]
"""Never raises for a rollout's own failure: that is data in the rollout."""
