"""One process at a time, across processes: a file lock that waits without blocking the event loop.

The lock goes with the process that holds it, so a killed job never leaves one behind.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

POLL_S = 0.2


@asynccontextmanager
async def file_lock(path: Path, *, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Holds the lock `path`; `waiting` is called once when somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting and not told:
                    waiting()
                told = True
                await asyncio.sleep(POLL_S)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
