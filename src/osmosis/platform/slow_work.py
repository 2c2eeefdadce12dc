"""Work that takes its time (git, files, other processes, an object store) runs in threads of its own, so that those
that answer requests stay free.

Each kind has its own few threads: forty syncs that wait for one lock stop neither `/health` nor an upload. A route that
does such work is marked `slow(kind)`, or awaits `apart`; no thread that answers requests starts a process. How long the
work may take is said where it is done.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from anyio import CapacityLimiter, to_thread

Kind = Literal["sync", "checks", "files", "objects", "imports", "sign-in"]
AT_ONCE = 8
"""Of each kind; more wait for their turn."""

P = ParamSpec("P")
T = TypeVar("T")
_here: ContextVar[bool] = ContextVar("slow_work", default=False)


@dataclass(slots=True)
class _Turns:
    """Who may work, in one event loop."""

    kinds: dict[Kind, CapacityLimiter] = field(default_factory=dict)
    keys: WeakValueDictionary[tuple[Kind, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def apart(kind: Kind, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` answers, or raises."""
    own = _of_this_loop().kinds
    limiter = own.get(kind) or own.setdefault(kind, CapacityLimiter(AT_ONCE))
    return await to_thread.run_sync(partial(_marked, partial(work, *args, **kwargs)), limiter=limiter)


async def in_turn(kind: Kind, key: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`apart`, one after the other of those with the same key: what would wait for one lock takes one thread."""
    keys = _of_this_loop().keys
    turn = keys.get((kind, key)) or keys.setdefault((kind, key), asyncio.Lock())
    async with turn:
        return await apart(kind, work, *args, **kwargs)


async def pieces_apart(kind: Kind, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """What an answer streams, each piece waited for apart."""
    while (piece := await apart(kind, next, pieces, None)) is not None:
        yield piece


def slow(kind: Kind) -> Callable[[Callable[P, T]], Callable[P, Awaitable[T]]]:
    """Marks the function of a route that works apart; `marked` reads the mark."""

    def mark(work: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(work)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            return await apart(kind, work, *args, **kwargs)

        _marks[answer] = kind, work
        return answer

    return mark


def marked(route: Callable[..., object]) -> tuple[Kind, Callable[..., object]] | None:
    """The kind of a route's work, and its function, to be called in a thread of that kind; None where it is quick."""
    return _marks.get(route)


def is_here() -> bool:
    """Whether what runs now is such work."""
    return _here.get()


_marks: dict[Callable[..., object], tuple[Kind, Callable[..., object]]] = {}


def _marked(work: Callable[[], T]) -> T:
    _here.set(True)  # in the copy of the context that the thread has for this call
    return work()


def _of_this_loop() -> _Turns:
    return _turns.setdefault(asyncio.get_running_loop(), _Turns())
