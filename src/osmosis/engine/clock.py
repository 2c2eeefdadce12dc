"""A time limit on the code inside a `with` block, cheap enough for every rollout, and movable while it runs.

Cancels the task it was entered in and turns that cancellation into `asyncio.TimeoutError`; any other cancellation
passes through. Code that goes on after its cancellation has a grace, then it is left behind (`Deadline.run`). Time in
which other rollouts held the event loop is not the code's own and is given back. All deadlines of an event loop share
one timer: most end in time, and a timer for each would cost more than everything else about them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from osmosis.sdk.calls import GRACE_S
from osmosis.sdk.driven import HELD_S, LeftBehind, LoopUser, driven, loop_user

T = TypeVar("T")


class Deadline:
    """`with Deadline(seconds) as limit: await limit.run(work)`; None sets no limit.

    `extend` gives back time that was not the code's own.
    """

    __slots__ = (
        "_cancels",
        "_due",
        "_grace",
        "_grace_s",
        "_held",
        "_task",
        "_user",
        "fired",
        "given_up",
        "seconds",
        "when",
    )

    def __init__(self, seconds: float | None, *, grace_s: float = GRACE_S) -> None:
        self.seconds = seconds
        self.fired = False
        self.given_up = False
        """The code did not end within the grace after its cancellation."""
        self._grace_s = grace_s
        self._cancels = 0
        self._due: _Due | None = None
        """Who watches over it, while it runs and has not fired."""
        self._grace: asyncio.TimerHandle | None = None
        self.when = 0.0
        """When it is over, on the event loop's clock."""
        self._held = (0.0, 0.0)
        """Seconds for which others, and this rollout, had held the event loop when they were last looked at."""

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Awaits user code under this limit."""
        return driven(work, self)

    def __enter__(self) -> Deadline:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(loop)
        if self.seconds is not None:
            due = self._due = _due_on(loop)
            self.when = loop.time() + self.seconds
            self._user = loop_user.get()
            self._held = _held(self._user)
            due.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        if not self.fired:
            return
        if self._grace is not None:
            self._grace.cancel()
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
        if self._due is not None and self.seconds is not None:
            self.when = self._due.loop.time() + self.seconds
            self._due.add(self)

    def stop(self) -> None:
        """The code in the block is done in time; what follows in it has limits of its own."""
        if self._due is not None:
            self._due.forget(self)
            self._due = None

    def extend(self, seconds: float) -> None:
        if self._due is not None:
            self.when += seconds

    def look(self, now: float) -> None:
        """Its time has come: it is over, or goes on for as long as others kept the event loop from it."""
        owed = self._owed(now)
        if owed > 0:
            self.when = now + owed
        else:
            self.end()

    def end(self) -> None:
        """The time is over now."""
        self.stop()
        self.fired = True
        self._cancel()
        if self._grace is None:
            self._grace = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)

    def _give_up(self) -> None:
        self.given_up = True
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancels += 1
            self._task.cancel()

    def _owed(self, now: float) -> float:
        """Seconds in which the code could not run because others held the event loop."""
        before, self._held = self._held, _held(self._user)
        others, own = self._held[0] - before[0], self._held[1] - before[1]
        if others <= 0 and own <= 0:
            late = now - self.when  # nobody known held it; whoever it was, this timer came too late
            return late if late >= HELD_S else 0.0
        return others


class _Due:
    """The deadlines that run on one event loop, behind one timer: it goes off when the first of them can be over."""

    __slots__ = ("_running", "_timer", "_when", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._running: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        """Of that timer."""

    def add(self, deadline: Deadline) -> None:
        self._running[deadline] = None
        if self._timer is None or deadline.when < self._when:
            self._set(deadline.when)

    def forget(self, deadline: Deadline) -> None:
        """The timer stays: setting it anew for each would be what one timer is to save."""
        self._running.pop(deadline, None)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._when = when
        self._timer = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self.loop.time()
        for deadline in [one for one in self._running if one.when <= now]:
            deadline.look(now)
        if self._running:
            self._set(min(one.when for one in self._running))


_of_this_thread = threading.local()


def _due_on(loop: asyncio.AbstractEventLoop) -> _Due:
    found: _Due | None = getattr(_of_this_thread, "due", None)
    if found is None or found.loop is not loop:
        found = _of_this_thread.due = _Due(loop)
    return found


def _held(user: LoopUser | None) -> tuple[float, float]:
    """Seconds for which other rollouts, and this one, have held the event loop so far."""
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
