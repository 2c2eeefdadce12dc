"""One process at a time, across processes: a file lock that waits without blocking the event loop.

The lock goes with the process that holds it, so a killed job never leaves one behind.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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


@contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Holds the lock `path` when nobody else does; False otherwise, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
