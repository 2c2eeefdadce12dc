"""What a sampler has done since its start: for the time split and the throughput of a step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Busy:
    """For how long at least one request was being sampled."""

    active: int = 0
    since: float = 0.0
    before: float = 0.0

    def changed(self, by: int) -> None:
        self.before, self.since = self.seconds, time.monotonic()
        self.active += by

    @property
    def seconds(self) -> float:
        return self.before + (time.monotonic() - self.since if self.active else 0.0)


@dataclass(slots=True)
class Totals:
    """Since the start."""

    tokens: int = 0
    malformed_calls: int = 0
    out_of_memory: str | None = None
    busy: Busy = field(default_factory=Busy)
