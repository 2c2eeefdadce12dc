"""Who may be on the rollout server when one of those on it may be the one that kills it.

After a death, everyone who was in flight is suspected and tried again in smaller groups: a quarter, a sixteenth, at
last alone. Those never suspected wait meanwhile. So the one that kills the server is found after a few deaths, nobody
else fails for it, and a hundred long rollouts need not run one by one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Quarantine:
    """`concurrency` is how many run together when nobody is suspected."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._open = False
        self._waiting: Counter[int] = Counter()
        self._running: Counter[int] = Counter()
        self._changed = asyncio.Condition()

    def group_size(self, suspicion: int) -> int:
        """How many of this suspicion (deaths lived through) may run together; 1 = alone."""
        return max(1, self._concurrency >> 2 * suspicion)

    def alone(self, suspicion: int) -> bool:
        """Whether a death at this suspicion has only one possible cause."""
        return suspicion > 0 and self.group_size(suspicion) == 1

    async def set_open(self, value: bool) -> None:
        """Whether there is a server to be on."""
        async with self._changed:
            self._open = value
            self._changed.notify_all()

    @asynccontextmanager
    async def admitted(self, suspicion: int) -> AsyncIterator[None]:
        """Waits for the server, and until no others than fit are on it."""
        async with self._changed:
            self._waiting[suspicion] += 1
            try:
                await self._changed.wait_for(lambda: self._may(suspicion))
            finally:
                self._waiting[suspicion] -= 1
            self._running[suspicion] += 1
        try:
            yield
        finally:
            self._running[suspicion] -= 1
            await asyncio.shield(self._tell())

    def _may(self, suspicion: int) -> bool:
        more_suspected = any(count and other > suspicion for other, count in self._waiting.items())
        others = any(count and other != suspicion for other, count in self._running.items())
        room = suspicion == 0 or self._running[suspicion] < self.group_size(suspicion)
        return self._open and not more_suspected and not others and room

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
