"""Threads for score functions that are not coroutines, so that one that hangs can be left behind.

Handing each call to a thread and back took a third of the CPU of a run against a stub endpoint (0.14 of 0.43 ms a
rollout). Calls of functions that have always been quick are therefore handed over together, one thread at a time."""

import asyncio
import contextvars
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from osmosis.engine.agent_files import LoadingScorers
from osmosis.sdk.user_code import in_thread, loop_user

QUICK_S = 0.002
QUICK_CALLS = 8
"""Calls in a row within `QUICK_S` after which a function counts as quick."""
STUCK_S = 0.1
"""Seconds after which calls that wait behind others get a thread each."""

Call = Callable[[], object]


class ScoreThreads:
    """At most `size` calls run at once, a batch of quick ones counted as one."""

    def __init__(self, size: int = 16) -> None:
        self.size = size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(size)
        self._quick: Counter[object] = Counter()
        self._batch: _Batch | None = None

    async def run(self, function: Call, timeout_s: float | None = None) -> object:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots, self._batch = loop, asyncio.Semaphore(self.size), None
        key = getattr(function, "func", function)
        call = partial(self._measure, key, function)
        if self._quick[key] >= QUICK_CALLS:
            if self._batch is None:
                self._batch = _Batch()
                loop.call_soon(self._start_batch, self._batch)
            return await self._wait(self._batch.add(call), timeout_s)
        async with self._slots:
            return await self._wait(in_thread(call), timeout_s)

    async def _wait(self, result: asyncio.Future[object], timeout_s: float | None) -> object:
        if timeout_s is not None and (user := loop_user.get()) is not None:
            user.ends_at = time.monotonic() + timeout_s
        return await asyncio.wait_for(result, timeout_s)

    def _start_batch(self, batch: "_Batch") -> None:
        self._batch = None
        batch.start()

    def _measure(self, key: object, function: Call) -> object:
        started = time.monotonic()
        try:
            with LoadingScorers():
                return function()
        except Exception:
            raise
        except BaseException as error:  # a SystemExit would end the event loop
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        finally:
            self._quick[key] = self._quick[key] + 1 if time.monotonic() - started <= QUICK_S else 0


class _Batch:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Call, asyncio.Future[object]]] = deque()
        self._done: deque[tuple[asyncio.Future[object], object, Exception | None]] = deque()
        self._rescue: asyncio.TimerHandle | None = None

    def add(self, call: Call) -> asyncio.Future[object]:
        result: asyncio.Future[object] = self._loop.create_future()
        self._waiting.append((partial(contextvars.copy_context().run, call), result))
        return result

    def start(self) -> None:
        self._rescue = self._loop.call_later(STUCK_S, self._split)
        in_thread(self._work).add_done_callback(lambda _: self._deliver())

    def _work(self) -> None:
        while self._waiting:
            try:
                call, result = self._waiting.popleft()
            except IndexError:
                return  # `_split` was faster
            try:
                self._done.append((result, call(), None))
            except Exception as error:  # noqa: BLE001 - carried to the one who waits for it
                self._done.append((result, None, error))

    def _split(self) -> None:
        self._deliver()
        with suppress(IndexError):  # the thread may take the last one
            while self._waiting:
                rest = _Batch()
                rest._waiting.append(self._waiting.popleft())
                rest.start()

    def _deliver(self) -> None:
        while self._done:
            result, value, error = self._done.popleft()
            if result.done():
                continue
            if error is None:
                result.set_result(value)
            elif isinstance(error, StopIteration):  # a future refuses this one
                result.set_exception(RuntimeError(f"the function raised StopIteration: {error}"))
            else:
                result.set_exception(error)
        if not self._waiting and self._rescue is not None:
            self._rescue.cancel()
