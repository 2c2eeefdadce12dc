"""How long to wait before trying again: doubling, with jitter, for a limited time in all."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """`next()` gives the next delay in seconds, or None when `total_s` seconds have passed since the first."""

    total_s: float
    first_s: float = 0.25
    longest_s: float = 10.0
    _tries: int = 0
    _since: float = field(default_factory=time.monotonic)

    def next(self, at_least: float | None = None) -> float | None:
        """The delay; `at_least` is what the other side asked for, honoured up to `longest_s`."""
        left = self.total_s - (time.monotonic() - self._since)
        if left <= 0:
            return None
        delay: float = min(self.first_s * 2.0 ** min(self._tries, 16), self.longest_s)
        self._tries += 1
        delay *= random.uniform(0.5, 1.0)
        if at_least:
            delay = max(delay, min(at_least, self.longest_s))
        return min(delay, left)
