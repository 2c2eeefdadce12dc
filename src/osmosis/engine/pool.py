"""A few daemon threads for score functions that are not coroutines.

A thread cannot be stopped: one whose function overruns its time limit is given up and replaced, so that neither
the run nor the end of the process waits for it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Job:
    function: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[object]
    started: bool = False
    given_up: bool = False


class DaemonPool:
    """At most `size` functions at once; threads start when there is work for them."""

    def __init__(self, size: int = 16) -> None:
        self.size = size
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._free = 0
        self._lock = threading.Lock()
        self._done: deque[tuple[asyncio.Future[object], object, Exception | None]] = deque()
        self._waking = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, function: Callable[[], object], timeout_s: float | None = None) -> object:
        """The function's result, or what it raised; `asyncio.TimeoutError` when it ran longer and was abandoned."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a later event loop: nothing waits for the last one's results any more
            self._loop, self._waking = loop, False
            self._done.clear()
        job = _Job(function, loop, loop.create_future())
        with self._lock:
            if self._free <= 0 and self._threads < self.size:
                self._start()
            self._free -= 1
        self._jobs.put(job)
        if timeout_s is None:
            return await job.future
        handle = loop.call_later(timeout_s, self._give_up, job, timeout_s)
        try:
            return await job.future
        finally:
            handle.cancel()

    def close(self) -> None:
        """Idle threads end; busy ones end with the process."""
        for _ in range(self._threads):
            self._jobs.put(None)

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

    def _start(self) -> None:
        self._threads += 1
        self._free += 1
        threading.Thread(target=self._work, daemon=True, name=f"score-{self._threads}").start()

    def _give_up(self, job: _Job, timeout_s: float) -> None:
        if job.future.done():
            return
        if not job.started:  # still queued: its time has not begun
            job.loop.call_later(timeout_s, self._give_up, job, timeout_s)
            return
        job.given_up = True
        job.future.set_exception(asyncio.TimeoutError())
        with self._lock:
            self._threads -= 1
            self._start()  # in place of the thread that hangs

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.started = True
            result, error = _call(job.function)
            if job.given_up:
                return  # this thread was replaced while it hung
            with self._lock:
                self._free += 1
            self._done.append((job.future, result, error))
            if self._waking:
                continue  # the loop is on its way already: waking it once more would cost as much as the job
            self._waking = True
            try:
                job.loop.call_soon_threadsafe(self._settle)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more


def _call(function: Callable[[], object]) -> tuple[object, Exception | None]:
    try:
        return function(), None
    except StopIteration as error:  # a future refuses this one: it would end the generator that waits for it
        return None, RuntimeError(f"the function raised StopIteration: {error}")
    except Exception as error:  # noqa: BLE001 - user code: whatever it raises belongs to its rollout
        return None, error
    except BaseException as error:  # noqa: BLE001 - a SystemExit in a score function must not end the thread silently
        return None, RuntimeError(f"{type(error).__name__}: {error}")
