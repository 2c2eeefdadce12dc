"""A time limit on the code inside a `with` block, cheap enough for every rollout, and movable while it runs.

Cancels the task it was entered in and turns that cancellation into `asyncio.TimeoutError`; any other cancellation
passes through. Code that goes on after its cancellation has a grace, then it is left behind (`Deadline.run`). Time in
which other rollouts held the event loop is not the code's own and is given back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from osmosis.sdk.calls import GRACE_S
from osmosis.sdk.driven import HELD_S, LeftBehind, driven, loop_user

T = TypeVar("T")


class Deadline:
    """`with Deadline(seconds) as limit: await limit.run(work)`; None sets no limit.

    `extend` gives back time that was not the code's own.
    """

    __slots__ = ("_cancels", "_grace_s", "_handle", "_held", "_loop", "_task", "_when", "fired", "given_up", "seconds")

    def __init__(self, seconds: float | None, *, grace_s: float = GRACE_S) -> None:
        self.seconds = seconds
        self.fired = False
        self.given_up = False
        """The code did not end within the grace after its cancellation."""
        self._grace_s = grace_s
        self._cancels = 0
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._held = (0.0, 0.0)
        """Seconds for which others, and this rollout, had held the event loop when they were last looked at."""

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Awaits user code under this limit."""
        return driven(work, self)

    def __enter__(self) -> Deadline:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        if self.seconds is not None:
            self._when = self._loop.time() + self.seconds
            self._held = _held()
            self._handle = self._loop.call_at(self._when, self._fire)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if not self.fired:
            return
        uncancel = getattr(self._task, "uncancel", None)  # Python 3.11 counts cancellations
        left = [uncancel() for _ in range(self._cancels)] if uncancel is not None else []
        if kind is None:
            raise asyncio.TimeoutError
        if issubclass(kind, LeftBehind):
            raise asyncio.TimeoutError from error
        if issubclass(kind, asyncio.CancelledError):
            if left and left[-1] > 0:
                return  # somebody else cancelled too, and means it
            raise asyncio.TimeoutError from error

    def restart(self) -> None:
        """The time begins now: what came before was waiting."""
        if self._handle is not None and self.seconds is not None and not self.fired:
            self._handle.cancel()
            self._when = self._loop.time() + self.seconds
            self._handle = self._loop.call_at(self._when, self._fire)

    def stop(self) -> None:
        """The code in the block is done in time; what follows in it has limits of its own."""
        if self._handle is not None and not self.fired:
            self._handle.cancel()
            self._handle = None

    def extend(self, seconds: float) -> None:
        if self._handle is not None and not self.fired:
            self._handle.cancel()
            self._when += seconds
            self._handle = self._loop.call_at(self._when, self._fire)

    def _fire(self) -> None:
        owed = self._owed()
        if owed > 0:
            self._when = self._loop.time() + owed
            self._handle = self._loop.call_at(self._when, self._fire)
            return
        self.end()

    def end(self) -> None:
        """The time is over now."""
        if self._handle is not None:
            self._handle.cancel()
        self.fired = True
        self._cancel()
        self._handle = self._loop.call_later(self._grace_s, self._give_up)

    def _give_up(self) -> None:
        self.given_up = True
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancels += 1
            self._task.cancel()

    def _owed(self) -> float:
        """Seconds in which the code could not run because others held the event loop."""
        before, self._held = self._held, _held()
        others, own = self._held[0] - before[0], self._held[1] - before[1]
        if others <= 0 and own <= 0:
            late = self._loop.time() - self._when  # nobody known held it; whoever it was, this timer came too late
            return late if late >= HELD_S else 0.0
        return others


def _held() -> tuple[float, float]:
    """Seconds for which other rollouts, and the current one, have held the event loop so far."""
    user = loop_user.get()
    if user is None or user.loop_use is None:
        return 0.0, 0.0
    return user.loop_use.held_s - user.held_s, user.held_s


class Waits:
    """Time that somebody spent waiting for rate limits; waits that run side by side count once."""

    __slots__ = ("_until", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = 0.0

    def add(self, seconds: float) -> float:
        """A wait of `seconds` begins now; how much of it no other wait covers already."""
        now = time.monotonic()
        end = now + seconds
        fresh = max(0.0, end - max(now, self._until))
        self._until = max(self._until, end)
        self.seconds += fresh
        return fresh
