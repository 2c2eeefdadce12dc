import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import filelock

POLL_S = 0.2


class FileLock:
    """The lock `path`; creates folders above it. Two locks of one file exclude each other inside a process, too."""

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = filelock.FileLock(path, mode=mode, thread_local=False)

    def take(self, *, timeout_s: float | None = 0.0) -> bool:
        """Return False when another holder keeps it for `timeout_s` seconds; None waits without end. Raise OSError."""
        if self._lock.is_locked:
            return True
        try:
            # Without an end, filelock looks for deadlocks by thread, and a lock may be released in another one.
            self._lock.acquire(timeout=threading.TIMEOUT_MAX if timeout_s is None else timeout_s)
        except filelock.Timeout:
            return False
        return True

    def release(self) -> None:
        self._lock.release()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    lock.take(timeout_s=None)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    lock = FileLock(path)
    acquired = lock.take()
    try:
        yield acquired
    finally:
        if acquired:
            lock.release()


@asynccontextmanager
async def locked_async(path: Path, *, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Hold the lock without blocking the event loop; call `waiting` once when it is not free."""
    lock = FileLock(path)
    while not lock.take():
        if waiting:
            waiting()
            waiting = None
        await asyncio.sleep(POLL_S)
    try:
        yield
    finally:
        lock.release()
