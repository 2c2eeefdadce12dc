"""Locks on files, between processes and inside one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import filelock


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
def locked(path: Path, *, timeout_s: float | None = None) -> Iterator[bool]:
    lock = FileLock(path)
    acquired = lock.take(timeout_s=timeout_s)
    try:
        yield acquired
    finally:
        if acquired:
            lock.release()


def lock_if_free(path: Path) -> AbstractContextManager[bool]:
    return locked(path, timeout_s=0)


@asynccontextmanager
async def locked_async(path: Path, *, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Hold the lock without blocking the event loop; call `waiting` once when it is not free."""
    lock = FileLock(path)
    while not lock.take():
        if waiting:
            waiting()
            waiting = None
        await asyncio.sleep(0.2)
    try:
        yield
    finally:
        lock.release()
