"""Spreads work over passes of the event loop. When thousands of rollouts go on at the same moment, each pass starts a
few of their calls and lets everything else (health checks, results, new rollouts) happen in between. It limits how
many start at once, never how many are under way.
"""

from __future__ import annotations

import asyncio
from collections import deque

PER_PASS = 24


class Turns:
    """`await turns.take()` before something that costs about a millisecond: at most `per_pass` go on in one pass."""

    def __init__(self, per_pass: int = PER_PASS) -> None:
        self._per_pass = per_pass
        self._left = per_pass
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def take(self) -> None:
        """Returns in this pass while there are turns left, else in one of the next, in order."""
        if self._left and not self._waiting:
            self._left -= 1
            self._schedule()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._scheduled = False
        self._left = self._per_pass
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled ones need no turn
                turn.set_result(None)
                self._left -= 1
        if self._waiting or self._left < self._per_pass:
            self._schedule()
