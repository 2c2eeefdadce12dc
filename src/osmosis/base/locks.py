"""One process at a time: a lock on a file, which goes with the process that holds it.

The file stays and holds nothing; only the lock on it counts, so a killed process never leaves one behind. Two locks
of one file exclude each other inside a process, too. Never falls back to "the file exists": that would outlive a crash.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

POLL_S = 0.2
PRIVATE = 0o600


class FileLock:
    """The lock `path`, free until `take` gives True; folders above it are made. `release` may be called twice."""

    def __init__(self, path: Path, *, mode: int = PRIVATE) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._mode = mode
        self._held: int | None = None

    def take(self, *, timeout_s: float | None = 0.0) -> bool:
        """False when somebody else has it for `timeout_s` seconds; None waits for ever. OSError as of any file."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._held is None:
            self._held = self._try()
            if self._held is None:
                if until is not None and time.monotonic() >= until:
                    return False
                time.sleep(POLL_S / 4)
        return True

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _try(self) -> int | None:
        """A descriptor that holds the lock; None while somebody else does."""
        # Another descriptor is another holder, in this process too; a child does not inherit it.
        found = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(found).st_nlink:  # else the file was removed meanwhile: whoever comes now makes another
                return found
        except BlockingIOError:
            pass
        except BaseException:
            os.close(found)
            raise
        os.close(found)
        return None


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
