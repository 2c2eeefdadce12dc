"""Notices what hangs: a rollout that stays in one stage, and code that blocks the event loop, by file and line.

Only tells; time limits end things. Once a second, from a thread of its own, it says what is in flight (`Pulse`): also
while the event loop is blocked, so that another process can ask what a run waits for.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import FrameType

from osmosis.base.processes import start_token
from osmosis.records.keys import Key
from osmosis.sdk.driven import LoopUse

from .limiter import Limiter
from .task import Task

EVERY_S = 1.0
LONGEST_SHOWN = 10
STUCK_S = 60.0
BLOCKED_S = 2.0
_RATE_LIMIT = "for a rate limit"


Pulse = Mapping[str, object]
"""`at` (seconds since the epoch), `pid` and `process` (its start, as `base.processes` tells it), `limit` (rollouts that
may be in flight), `stages` (how many are in each),
`longest` (`[name, stage, seconds]` of the oldest), `blocked_s` and `blocked_at` (of the event loop, else null)."""


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
        pulse: Callable[[Pulse], None] | None = None,
    ) -> None:
        self._active = active
        self._pulse = pulse
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
        self._process: str | None = None
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
            self._say(f"{user.name} blocked the event loop for {seconds:.1f} s{at}: await, or use a thread")
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
        beats = 0
        self._process = start_token(os.getpid()) if self._pulse is not None else None
        while not self._stop.wait(self._every_s / 2):
            silent = time.monotonic() - self._beat - self._every_s
            beats += 1
            if self._pulse is not None and beats % 2:
                self._pulse(self._in_flight(silent))
            if silent > self._blocked_s and self._culprit is None:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._culprit = _where(frame)
            if silent > self._stuck_s and self._warned != self._beat:
                # It may never end, and nobody on the loop could say so.
                self._warned = self._beat
                user = self._loop_use.running
                who = f"{user.name} has" if user is not None else "something has"
                self._say(f"{who} blocked the event loop for {silent:.0f} s at {self._culprit}")

    def _in_flight(self, silent: float) -> Pulse:
        now = time.monotonic()
        active = list(self._active)
        stages = Counter("waiting for a rate limit" if _RATE_LIMIT in task.stage else task.stage for task in active)
        longest = sorted(active, key=lambda task: task.since)[:LONGEST_SHOWN]
        blocked = silent > self._blocked_s
        return {
            "at": time.time(),
            "pid": os.getpid(),
            "process": self._process,
            "limit": None if self._limiter is None else int(self._limiter.limit),
            "stages": dict(stages),
            "longest": [[task.name, task.stage, round(now - task.since, 1)] for task in longest],
            "blocked_s": round(silent, 1) if blocked else None,
            "blocked_at": self._culprit if blocked else None,
        }


def _where(frame: FrameType | None) -> str:
    """The innermost frame that is not the standard library's."""
    first = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if "/lib/python" not in name and not name.startswith("<"):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return f"{first.f_code.co_filename}:{first.f_lineno}" if first else "an unknown location"
