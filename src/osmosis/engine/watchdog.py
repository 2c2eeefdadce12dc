"""Report what hangs: a rollout that stays in one stage, and code that blocks the event loop, by file and line. Such
code is interrupted past its time limit, and past that of the run its process is ended."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from types import FrameType
from typing import Any
from weakref import WeakSet

from typing_extensions import Self

from osmosis.base.processes import start_token
from osmosis.engine.limits import Limiter
from osmosis.engine.task import HELD_S, LoopUse, Task
from osmosis.records.run.rows import Key
from osmosis.sdk.user_code import Blocked, LoopUser, loop_user

EVERY_S = 1.0
LONGEST_SHOWN = 10
STUCK_S = 60.0
BLOCKED_S = 2.0
BLOCK_GRACE_S = 1.0
LAST_GRACE_S = 15.0  # Seconds past the run's time limit after which its process is ended, if it is its own
_RATE_LIMIT = "for a rate limit"


owns_process: ContextVar[bool] = ContextVar("osmosis_owns_process", default=False)

Pulse = Mapping[str, object]
"""`at` (seconds since the epoch), `pid` and `process` (its start, as in `base.processes`), `limit` (rollouts that may
be in flight), `stages` (how many are in each), `longest` (`[name, stage, seconds]` of the oldest), `blocked_s` and
`blocked_at` (of the event loop, else null).
"""


_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _leave_forked_child() -> None:
    for loop in _loops:
        if loop.is_running():
            loop.call_soon(os._exit, 1)  # a child in which code goes on awaiting is no second run


os.register_at_fork(after_in_child=_leave_forked_child)


@dataclass(eq=False)
class Watchdog:
    active: Collection[Task]
    say: Callable[[str], None]
    _: KW_ONLY
    limiter: Limiter | None = None
    stuck_s: float = STUCK_S
    every_s: float = EVERY_S
    blocked_s: float = BLOCKED_S
    loop_use: LoopUse = field(default_factory=LoopUse)
    pulse: Callable[[Pulse], None] | None = None
    run_s: float | None = None  # time limit of the run
    on_beat: Callable[[], None] | None = None
    on_end: Callable[[], None] | None = None  # called from a thread, before this process is ended

    def __post_init__(self) -> None:
        self._run_ends_at = None if self.run_s is None else time.monotonic() + self.run_s
        self._owns_process = owns_process.get()
        self.every_s = min(self.every_s, self.stuck_s)
        self._said: dict[Key, float] = {}
        self._beat = time.monotonic()
        self._culprit: str | None = None
        self._blocker: Task | None = None
        self._charged = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warned = 0.0
        self._stop = threading.Event()
        self._process: str | None = None
        self._thread_id = threading.get_ident()
        self._interrupter = Interrupter(lambda: self._is_overdue(loop_user.get()))

    async def watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        _loops.add(self._loop)
        threading.Thread(target=self._listen, daemon=True, name="watchdog").start()
        try:
            with self._interrupter:
                while True:
                    before = self._beat = time.monotonic()
                    if self.on_beat is not None:
                        self.on_beat()
                    await asyncio.sleep(self.every_s)
                    lag = time.monotonic() - before - self.every_s
                    if self.limiter is not None:
                        self.limiter.lagging(lag)
                    self._tell_held(lag)
                    self._look()
        finally:
            self._stop.set()

    def _tell_held(self, lag: float) -> None:
        if lag >= HELD_S:
            self._charge(lag - self._charged)
        where, self._culprit = self._culprit, None
        blocker, self._blocker = self._blocker, None
        self._charged = 0.0
        if where is not None and blocker is not None:
            self.say(f"{blocker.name} blocked the event loop for {lag:.1f} s at {where}: await, or use a thread")
        elif where is not None:
            self.say(f"the event loop was blocked for {lag:.1f} s at {where}")

    def _charge(self, seconds: float) -> None:
        self._charged += seconds
        self.loop_use.held_s += seconds
        if self._blocker is not None:
            self._blocker.held_s += seconds

    def _find_blocker(self) -> Task | None:
        current = asyncio.current_task(self._loop)
        name = current.get_name() if current is not None else ""
        return next((task for task in list(self.active) if name == task.name or task.rollout_id in name), None)

    def _look(self) -> None:
        now = time.monotonic()
        for task in list(self.active):
            spent = now - task.since
            if spent >= self.stuck_s and self._said.get(task.key) != task.since:
                self._said[task.key] = task.since
                self.say(f"row {task.row.index} attempt {task.attempt} has been in {task.stage!r} for {spent:.0f} s")
        if len(self._said) > 10_000:
            self._said.clear()

    def _listen(self) -> None:
        beats = 0
        self._process = start_token(os.getpid()) if self.pulse is not None else None
        while not self._stop.wait(self.every_s / 2):
            silent = time.monotonic() - self._beat - self.every_s
            beats += 1
            if self.pulse is not None and beats % 2:
                self.pulse(self._in_flight(silent))
            if silent > self.blocked_s and self._culprit is None:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._culprit, self._blocker = _where(frame), self._find_blocker()
            if silent > self.blocked_s:
                self._charge(silent - self._charged)
                self._interrupter.interrupt(is_certain=self._is_overdue(self._blocker))
                self._end_process_if_due(silent)
            if silent > self.stuck_s and self._warned != self._beat:
                # It may never end, and nobody on the loop could say so.
                self._warned = self._beat
                blocker = f"{self._blocker.name} has" if self._blocker is not None else "something has"
                self.say(f"{blocker} blocked the event loop for {silent:.0f} s at {self._culprit}")

    def _is_overdue(self, user: LoopUser | None) -> bool:
        now = time.monotonic()
        if user is None or now - self._beat - self.every_s < self.blocked_s:
            return False
        ends = [at for at in (user.ends_at, self._run_ends_at) if at is not None]
        return bool(ends) and now > min(ends) + BLOCK_GRACE_S

    def _end_process_if_due(self, silent: float) -> None:
        if self._run_ends_at is None or not self._owns_process:
            return
        if min(time.monotonic() - self._run_ends_at, silent) < LAST_GRACE_S:
            return
        if self.on_end is not None:
            self.on_end()
        with suppress(Exception):  # a closed pipe must not keep the process
            sys.stderr.write(f"ended past the run's time limit: code at {self._culprit} blocks it; rollouts are kept\n")
            sys.stderr.flush()
        os._exit(1)

    def _in_flight(self, silent: float) -> Pulse:
        now = time.monotonic()
        active = list(self.active)
        stages = Counter("waiting for a rate limit" if _RATE_LIMIT in task.stage else task.stage for task in active)
        longest = sorted(active, key=lambda task: task.since)[:LONGEST_SHOWN]
        blocked = silent > self.blocked_s
        return {
            "at": time.time(),
            "pid": os.getpid(),
            "process": self._process,
            "limit": None if self.limiter is None else int(self.limiter.limit),
            "stages": dict(stages),
            "longest": [[task.name, task.stage, round(now - task.since, 1)] for task in longest],
            "blocked_s": round(silent, 1) if blocked else None,
            "blocked_at": self._culprit if blocked else None,
        }


def _where(frame: FrameType | None) -> str:
    first = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if "/lib/python" not in name and not name.startswith("<"):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return f"{first.f_code.co_filename}:{first.f_lineno}" if first else "an unknown location"


EVERY_CPU_S = 1.0
_SIGNALS = [
    getattr(signal, name) for name in ("SIGURG", "SIGVTALRM") if hasattr(signal, name) and hasattr(signal, "setitimer")
]


class Interrupter:
    """`with Interrupter(is_due)` on the event loop's thread; `is_due` is asked there, with the context of that code."""

    def __init__(self, is_due: Callable[[], bool]) -> None:
        self._is_due = is_due
        self._thread_id = threading.get_ident()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # only the main thread has handlers
            self._handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
            if self._handlers:
                signal.setitimer(signal.ITIMER_VIRTUAL, EVERY_CPU_S, EVERY_CPU_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handlers:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def interrupt(self, *, is_certain: bool) -> None:
        """Have the loop's thread ask `is_due`; where it has no handlers, raise there if `is_certain`."""
        if self._handlers:
            signal.pthread_kill(self._thread_id, signal.SIGURG)
        elif is_certain:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(Blocked))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_due():
            raise Blocked("the code blocked the event loop past its time limit")
