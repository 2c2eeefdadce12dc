"""Waiting for the first of several tasks, and ending those that are not wanted any more.

Before Python 3.12 `asyncio.wait_for` forgets a cancellation that comes at the moment at which what it waits for is
done. Whoever cancelled once and waited would wait for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 30.0
"""Long enough for a task that was cancelled to clean up."""


async def until_one(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Until one of them is done, whatever they hold, or the time is over."""
    await asyncio.wait(set(futures), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def end(*tasks: asyncio.Future[Any], again_s: float = AGAIN_S) -> None:
    """Cancels them, and again those that go on; returns when all have ended, in whatever way."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=again_s)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: nobody else asks
