"""Notices what hangs: a rollout that stays in one stage, and code that blocks the event loop, by file and line.

Only tells; time limits end things.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType

from osmosis.records.keys import Key
from osmosis.sdk.driven import LoopUse

from .limiter import Limiter
from .task import Task

EVERY_S = 1.0
STUCK_S = 60.0
BLOCKED_S = 2.0


class Watchdog:
    """Looks at the tasks in flight once a second; `say` hears what it finds, once per stage."""

    def __init__(
        self,
        active: Collection[Task],
        say: Callable[[str], None],
        *,
        limiter: Limiter | None = None,
        stuck_s: float = STUCK_S,
        every_s: float = EVERY_S,
        blocked_s: float = BLOCKED_S,
        loop_use: LoopUse | None = None,
    ) -> None:
        self._active = active
        self._say = say
        self._limiter = limiter
        self._stuck_s = stuck_s
        self._every_s = min(every_s, stuck_s)
        self._blocked_s = blocked_s
        self._said: dict[Key, float] = {}
        self._beat = time.monotonic()
        self._culprit: str | None = None
        self._loop_use = loop_use or LoopUse()
        self._warned = 0.0
        self._stop = threading.Event()
        self._thread_id = threading.get_ident()

    async def watch(self) -> None:
        """Runs until cancelled."""
        thread = threading.Thread(target=self._listen, daemon=True, name="watchdog")
        thread.start()
        try:
            while True:
                before = time.monotonic()
                self._beat = before
                await asyncio.sleep(self._every_s)
                lag = time.monotonic() - before - self._every_s
                if self._limiter is not None:
                    self._limiter.lagging(lag)
                self._tell_held(lag)
                self._look()
        finally:
            self._stop.set()

    def _tell_held(self, lag: float) -> None:
        """Who held the event loop since the last look, and where, as far as that is known."""
        held, self._loop_use.said = self._loop_use.said, []
        where, self._culprit = self._culprit, None
        long = [(user, seconds) for user, seconds in held if seconds >= self._blocked_s]
        for user, seconds in long:
            at = f" at {where}" if where else ""
            self._say(
                f"{user.name} kept the event loop from all others for {seconds:.1f} s{at}: await, or use a thread"
            )
        if where is not None and not long:
            self._say(f"the event loop was blocked for {lag:.1f} s at {where}")

    def _look(self) -> None:
        now = time.monotonic()
        for task in list(self._active):
            spent = now - task.since
            if spent >= self._stuck_s and self._said.get(task.key) != task.since:
                self._said[task.key] = task.since
                self._say(f"row {task.row.index} attempt {task.attempt} has been in {task.stage!r} for {spent:.0f} s")
        if len(self._said) > 10_000:
            self._said.clear()

    def _listen(self) -> None:
        while not self._stop.wait(self._every_s / 2):
            silent = time.monotonic() - self._beat - self._every_s
            if silent > self._blocked_s and self._culprit is None:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._culprit = _where(frame)
            if silent > self._stuck_s and self._warned != self._beat:
                # It may never end, and nobody on the loop could say so.
                self._warned = self._beat
                user = self._loop_use.running
                who = f"{user.name} keeps" if user is not None else "something keeps"
                self._say(f"{who} the event loop from all others since {silent:.0f} s at {self._culprit}")


def _where(frame: FrameType | None) -> str:
    """The innermost frame that is not the standard library's."""
    first = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if "/lib/python" not in name and not name.startswith("<"):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return f"{first.f_code.co_filename}:{first.f_lineno}" if first else "an unknown location"
