"""A time limit on the code inside a `with` block, cheap enough for every rollout, and movable while it runs.

Cancels the task it was entered in, once, and turns that cancellation into `asyncio.TimeoutError`; any other
cancellation passes through.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType


class Deadline:
    """`with Deadline(seconds):`; None sets no limit. `extend` gives back time that was not the code's own."""

    __slots__ = ("_handle", "_loop", "_task", "_when", "fired", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.fired = False
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def __enter__(self) -> Deadline:
        if self.seconds is not None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            self._when = self._loop.time() + self.seconds
            self._handle = self._loop.call_at(self._when, self._fire)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._handle is None:
            return
        self._handle.cancel()
        if not self.fired:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            uncancel = getattr(self._task, "uncancel", None)  # Python 3.11 counts cancellations
            if uncancel is not None and uncancel() > 0:
                return  # somebody else cancelled too, and means it
            raise asyncio.TimeoutError from error
        if kind is None:
            raise asyncio.TimeoutError

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
        self.fired = True
        if self._task is not None:
            self._task.cancel()


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
