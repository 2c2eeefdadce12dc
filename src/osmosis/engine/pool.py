"""A few daemon threads for score functions that are not coroutines.

A thread cannot be stopped: one whose function overruns its time limit is given up and replaced, so that neither
the run nor the end of the process waits for it. Threads are woken as they are needed: one serves many quick functions,
and while it is busy with a slow one others take over. Waking a thread for each function would cost more than most
functions do.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from osmosis.base.light_dataclass import dataclass

LOOK_S = 0.003
"""A function that waits for so long gets another thread."""


@dataclass(slots=True, eq=False)
class _Job:
    function: Callable[[], object]
    future: asyncio.Future[object]
    timeout_s: float | None
    started: float | None = None
    """On the monotonic clock."""
    given_up: bool = False


class DaemonPool:
    """At most `size` functions at once; threads start when there is work for them. For one event loop at a time."""

    def __init__(self, size: int = 16, *, look_s: float = LOOK_S) -> None:
        self.size = size
        self._look_s = look_s
        self._jobs: deque[_Job] = deque()
        self._running: set[_Job] = set()
        self._threads = 0
        self._awake = 0
        """Threads that work, or are about to look for work."""
        self._begun = 0
        self._begun_then = 0
        """`_begun` at the last look."""
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Each wakes one thread that sleeps."""
        self._closed = False
        self._done: deque[tuple[asyncio.Future[object], object, Exception | None]] = deque()
        self._waking = False
        self._waking_one = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._late_timer: asyncio.TimerHandle | None = None
        self._watched_s = 0.0
        """For how long that timer was set: whoever has at least as long is not late before it."""

    async def run(self, function: Callable[[], object], timeout_s: float | None = None) -> object:
        """The function's result, or what it raised; `asyncio.TimeoutError` when it ran longer and was abandoned."""
        return await self.start(function, timeout_s)

    def start(self, function: Callable[[], object], timeout_s: float | None = None) -> asyncio.Future[object]:
        """`run`, for who awaits it at once."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a later event loop: nothing waits for the last one's results any more
            self._loop, self._waking, self._waking_one = loop, False, False
            self._look_timer = self._late_timer = None
            self._done.clear()
        job = _Job(function, loop.create_future(), timeout_s)
        self._jobs.append(job)
        if not self._awake and not self._waking_one:
            # Not now: the thread would take the interpreter's lock at the next system call of the loop, for one
            # function. When the loop comes round, all those of the round are there; and only after that, so that what
            # is sent at the end of the round goes first: the other side works on it meanwhile.
            self._waking_one = True
            loop.call_soon(loop.call_soon, self._wake_one)
        if self._look_timer is None:
            self._look_timer = loop.call_later(self._look_s, self._look)
        if timeout_s is not None and (self._late_timer is None or timeout_s < self._watched_s):
            self._watch(timeout_s)
        return job.future

    def close(self) -> None:
        """Idle threads end; busy ones end with the process."""
        self._closed = True
        for _ in range(self._threads):
            self._calls.put(None)

    def _wake_one(self) -> None:
        self._waking_one = False
        if self._jobs and not self._awake:
            self._wake_up(1)

    def _wake_up(self, count: int) -> None:
        """Sets threads to work, up to `count` more of them."""
        with self._lock:
            for _ in range(min(count, self.size - self._awake)):
                self._awake += 1
                if self._awake > self._threads:
                    self._start()
                else:
                    self._calls.put(None)

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, daemon=True, name=f"score-{self._threads}").start()

    def _look(self) -> None:
        """More threads, twice as many with every look, while functions wait and none of them is begun."""
        assert self._loop is not None
        self._look_timer = None
        if not self._jobs:
            return
        if self._begun == self._begun_then:
            self._wake_up(max(1, self._awake))
        self._begun_then = self._begun
        self._look_timer = self._loop.call_later(self._look_s, self._look)

    def _watch(self, seconds: float) -> None:
        """One timer for all functions: it goes off when the first of them can be late."""
        assert self._loop is not None
        if self._late_timer is not None:
            self._late_timer.cancel()
        self._watched_s = seconds
        self._late_timer = self._loop.call_later(seconds, self._look_for_late)

    def _look_for_late(self) -> None:
        self._late_timer = None
        now, left = time.monotonic(), []
        for job in list(self._running):
            if job.timeout_s is None or job.started is None:
                continue
            if now - job.started >= job.timeout_s:
                self._give_up(job)
            else:
                left.append(job.started + job.timeout_s - now)
        left += [job.timeout_s for job in list(self._jobs) if job.timeout_s is not None]  # their time has not begun
        if left:
            self._watch(min(left))

    def _give_up(self, job: _Job) -> None:
        self._running.discard(job)
        if job.future.done():
            return
        job.given_up = True
        job.future.set_exception(asyncio.TimeoutError())
        with self._lock:
            self._threads -= 1
            self._start()  # in place of the thread that hangs, and awake like that one

    def _settle(self) -> None:
        self._waking = False  # before looking: what is added from here on wakes the loop again
        while self._done:
            future, result, error = self._done.popleft()
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _work(self) -> None:
        while not self._closed:
            try:
                job = self._jobs.popleft()
            except IndexError:
                if self._rest():
                    self._calls.get()
                continue
            job.started = time.monotonic()
            self._begun += 1
            self._running.add(job)
            loop, (result, error) = job.future.get_loop(), _call(job.function)
            self._running.discard(job)
            if job.given_up:
                return  # this thread was replaced while it hung
            self._done.append((job.future, result, error))
            if self._waking:
                continue  # the loop is on its way already: waking it once more would cost as much as the job
            self._waking = True
            try:
                loop.call_soon_threadsafe(self._settle)
            except RuntimeError:
                continue  # that loop is closed: nobody waits any more

    def _rest(self) -> bool:
        """Whether this thread may sleep: there is nothing to do, and from now on somebody else would wake it."""
        with self._lock:
            self._awake -= 1
            if not self._jobs:  # looked at after that: who adds a job looks at `_awake` after adding it
                return True
            self._awake += 1
            return False


def _call(function: Callable[[], object]) -> tuple[object, Exception | None]:
    try:
        return function(), None
    except StopIteration as error:  # a future refuses this one: it would end the generator that waits for it
        return None, RuntimeError(f"the function raised StopIteration: {error}")
    except Exception as error:  # noqa: BLE001 - user code: whatever it raises belongs to its rollout
        return None, error
    except BaseException as error:  # noqa: BLE001 - a SystemExit in a score function must not end the thread silently
        return None, RuntimeError(f"{type(error).__name__}: {error}")
