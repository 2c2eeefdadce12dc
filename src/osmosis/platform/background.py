"""Run slow work in threads apart from those that answer requests, a few for each kind, so that none blocks another."""

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from anyio import CapacityLimiter, to_thread

log = logging.getLogger(__name__)

Kind = Literal["sync", "checks", "files", "objects", "imports", "sign-in"]
THREADS_PER_KIND = 8

P = ParamSpec("P")
T = TypeVar("T")
_in_background: ContextVar[bool] = ContextVar("platform_background", default=False)


@dataclass(slots=True)
class _LoopState:
    limiters: dict[Kind, CapacityLimiter] = field(default_factory=dict)
    locks: WeakValueDictionary[tuple[Kind, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = WeakKeyDictionary()


async def run_apart(kind: Kind, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    limiters = _loop_state().limiters
    limiter = limiters.get(kind) or limiters.setdefault(kind, CapacityLimiter(THREADS_PER_KIND))
    return await to_thread.run_sync(partial(_run_marked, partial(work, *args, **kwargs)), limiter=limiter)


async def run_in_turn(kind: Kind, key: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run works with the same key one after the other: those waiting for a lock take one thread."""
    locks = _loop_state().locks
    lock = locks.get((kind, key)) or locks.setdefault((kind, key), asyncio.Lock())
    async with lock:
        return await run_apart(kind, work, *args, **kwargs)


async def stream_apart(kind: Kind, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await run_apart(kind, next, pieces, None)) is not None:
        yield piece


def slow(kind: Kind) -> Callable[[Callable[P, T]], Callable[P, Awaitable[T]]]:
    def decorate(work: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(work)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            return await run_apart(kind, work, *args, **kwargs)

        return run

    return decorate


class RepeatingThread:
    """Repeat a step until stopped; one that fails is logged, and the next one comes."""

    def __init__(self, name: str, every_s: float, step: Callable[[], None], *, first_s: float | None = None) -> None:
        self._stop, self._every_s, self._step = threading.Event(), every_s, step
        self._first_s = every_s if first_s is None else first_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_s: float = 30.0) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=wait_s)

    def _run(self) -> None:
        pause_s = self._first_s
        while not self._stop.wait(pause_s):
            pause_s = self._every_s
            try:
                self._step()
            except Exception:
                log.exception("%s failed", self._thread.name)


def is_background() -> bool:
    return _in_background.get()


def _run_marked(work: Callable[[], T]) -> T:
    _in_background.set(True)  # in the thread's copy of the context
    return work()


def _loop_state() -> _LoopState:
    return _loops.setdefault(asyncio.get_running_loop(), _LoopState())
