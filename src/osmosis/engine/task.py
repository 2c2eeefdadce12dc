import time
from collections.abc import Callable
from dataclasses import dataclass, field

from osmosis.engine.deadline import LoopUse
from osmosis.records.run.rows import Key, Row, place_key


@dataclass(slots=True, eq=False)
class Task:
    row: Row
    attempt: int
    rollout_id: str
    step: int = 0
    stage: str = "waiting"
    since: float = field(default_factory=time.monotonic)
    loop_use: LoopUse | None = None
    held_s: float = 0.0
    """Seconds for which this attempt kept the event loop from others."""
    ends_at: float | None = None
    """When its code has to end, on the monotonic clock; None without a limit."""
    on_enter: Callable[[], None] | None = None
    left_behind: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"row {self.row.index} attempt {self.attempt}"

    @property
    def key(self) -> Key:
        return (self.step, self.row.key or place_key(self.row.index), self.attempt)

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.since = time.monotonic()
        if self.on_enter is not None:
            self.on_enter()
