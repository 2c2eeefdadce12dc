"""One process at a time: a lock on a file, which goes with the process that holds it.

The file stays and holds nothing; only the lock on it counts, so a killed process never leaves one behind. Two locks
of one file exclude each other inside a process, too. Never falls back to "the file exists": that would outlive a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

POLL_S = 0.2
PRIVATE = 0o600


class FileLock:
    """The lock `path`, free until `take` gives True; folders above it are made. `release` may be called twice."""

    def __init__(self, path: Path, *, mode: int = PRIVATE) -> None:
        from filelock import FileLock as Native  # costs as much as the rest of a short command

        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not bound to a thread: what an event loop takes, its worker threads may give back.
        self._native = Native(path, mode=mode, thread_local=False, fallback_to_soft=False)

    def take(self, *, timeout_s: float | None = 0.0) -> bool:
        """False when somebody else has it for `timeout_s` seconds; None waits for ever. OSError as of any file."""
        from filelock import Timeout

        try:
            self._native.acquire(timeout=-1 if timeout_s is None else timeout_s)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        self._native.release()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock; waits for it, however long."""
    lock = FileLock(path)
    lock.take(timeout_s=None)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Holds the lock when nobody else does; False otherwise, at once."""
    lock = FileLock(path)
    taken = lock.take()
    try:
        yield taken
    finally:
        if taken:
            lock.release()


@asynccontextmanager
async def locked_async(path: Path, *, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """`locked` without blocking the event loop; `waiting` is called once when somebody else has the lock."""
    import asyncio  # costs a short command more than all of its own code

    lock = FileLock(path)
    told = False
    while not lock.take():
        if waiting and not told:
            waiting()
        told = True
        await asyncio.sleep(POLL_S)
    try:
        yield
    finally:
        lock.release()
