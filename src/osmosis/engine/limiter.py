"""How many rollouts may be in flight: a fixed number, or one that adapts to what the endpoint bears.

Adapts like a network's congestion window: up by one per window of answers, down by half at a rate limit, down
by a tenth while this process itself is too slow to serve what it started.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

START = 8
LAG_LIMIT_S = 0.1
_COOLDOWN_S = 2.0
_SLOW_FACTOR = 3.0
_WINDOW = 50


class Limiter:
    """Slots for rollouts. `answered` and `rate_limited` make it a `llm.Signals`; fixed ones ignore both."""

    def __init__(self, ceiling: int, *, adaptive: bool = False) -> None:
        self.ceiling = ceiling
        self.adaptive = adaptive
        self.limit = float(min(START, ceiling) if adaptive else ceiling)
        self.active = 0
        self.history: list[tuple[float, int]] = []
        """When (monotonic seconds) the limit fell, and to what."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._quiet_until = 0.0
        self._latency = 0.0
        self._best = 0.0
        self._seen = 0

    def resize(self, ceiling: int) -> None:
        """As many slots from now on; what is in flight beyond them finishes."""
        grown = self.ceiling == int(self.limit) or not self.adaptive
        self.ceiling = ceiling
        self.limit = float(ceiling) if grown else min(self.limit, float(ceiling))
        self._admit()

    def take(self) -> bool:
        """A slot, when one is free now."""
        if self.active >= int(self.limit):
            return False
        self.active += 1
        return True

    async def acquire(self) -> None:
        if self.take():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            raise

    def release(self) -> None:
        self.active -= 1
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self.active < int(self.limit):
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.active += 1
                waiter.set_result(None)

    def answered(self, seconds: float) -> None:
        """A call was answered: room for a little more, unless answers have become much slower than they were."""
        if not self.adaptive:
            return
        self._seen += 1
        self._latency = seconds if not self._latency else 0.9 * self._latency + 0.1 * seconds
        if self._seen >= _WINDOW and (not self._best or self._latency < self._best):
            self._best = self._latency
        slow = bool(self._best) and self._latency > _SLOW_FACTOR * self._best + 0.05
        if not slow and time.monotonic() >= self._quiet_until and self.active >= int(self.limit) - 1:
            self.limit = min(float(self.ceiling), self.limit + 1.0 / max(1.0, self.limit / 4))
            self._admit()

    def rate_limited(self, seconds: float) -> None:
        """The endpoint refused a call: half as many, once per cooldown."""
        self._shrink(0.5, max(_COOLDOWN_S, seconds))

    def lagging(self, seconds: float) -> None:
        """The event loop itself ran late by so much."""
        if seconds > LAG_LIMIT_S:
            self._shrink(0.9, _COOLDOWN_S)

    def _shrink(self, factor: float, quiet_s: float) -> None:
        now = time.monotonic()
        if not self.adaptive or now < self._quiet_until:
            return
        self.limit = max(1.0, self.limit * factor)
        self._quiet_until = now + quiet_s
        if len(self.history) < 1000:
            self.history.append((now, int(self.limit)))
