from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from types import CoroutineType
from typing import Any, Protocol, TypeVar

from osmosis.base.jsonable import JsonObject

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 5.0
LAST_GRACE_S = 2.0
LATE_S = 0.25  # Seconds past its limit at which code that blocked the event loop may end
MAX_THREADS = 32
IDLE_THREAD_S = 10.0

tool_time_limit: ContextVar[float | None] = ContextVar("osmosis_tool_time_limit", default=None)
"""Seconds for every tool call that brings no limit of its own; an evaluation sets it from its plan."""

left_behind: ContextVar[list[str] | None] = ContextVar("osmosis_left_behind", default=None)
"""Collects the names of a rollout's code that ignored its cancellation."""


class LoopUser(Protocol):
    held_s: float
    ends_at: float | None  # When its code has to end, on the monotonic clock; None without a limit

    @property
    def name(self) -> str: ...


loop_user: ContextVar[LoopUser | None] = ContextVar("osmosis_loop_user", default=None)


_resisting: list[CoroutineType[Any, Any, Any]] = []
"""Coroutines that went on although they were closed. Collecting them would resume them once more."""


class DeadlineExceeded(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"time limit of {seconds:g} s exceeded")
        self.seconds = seconds


class Blocked(BaseException):
    """Raised inside code that still blocks the event loop when its time limit has passed."""


class SelfCancelled(Exception):
    """The coroutine was cancelled from inside, not by its caller."""


class CodeExited(Exception): ...


class LimitReached(BaseException):
    """A rollout stands before a model call beyond one of its limits: it is over, and scored as far as it came."""

    def __init__(self, reason: str, messages: list[JsonObject]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.messages = messages


async def contain(work: Awaitable[T]) -> T:
    process = os.getpid()
    try:
        return await work
    except (Exception, asyncio.CancelledError, LimitReached, Blocked, GeneratorExit):
        raise
    except BaseException as error:
        raise CodeExited(
            f"the code raised {type(error).__name__}({error}), which would have ended the process"
        ) from error
    finally:
        if os.getpid() != process:
            os._exit(1)


async def run_user_code(
    work: Awaitable[T], seconds: float | None = None, *, grace_s: float = GRACE_S, name: str | None = None
) -> T:
    """Return the result of `work`; raise `DeadlineExceeded` after `seconds` (None is no limit)."""
    started = time.monotonic()
    if seconds is not None and (user := loop_user.get()) is not None:
        user.ends_at = started + seconds
    task = asyncio.get_running_loop().create_task(contain(work), name=name)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await stop_task(task, grace_s)
        raise
    if not task.done():
        await stop_task(task, grace_s)
        raise DeadlineExceeded(seconds or 0.0)
    if seconds is not None and time.monotonic() - started > seconds + LATE_S:
        retrieve(task)
        raise DeadlineExceeded(seconds)
    if task.cancelled():
        raise SelfCancelled("the code cancelled its own task")
    return task.result()


async def stop_task(task: asyncio.Task[Any], grace_s: float = GRACE_S, *, name: str | None = None) -> bool:
    task.cancel()
    try:
        await asyncio.wait({task}, timeout=grace_s)
    finally:
        stubborn = not task.done()
        if stubborn:
            name = name or task.get_name()
            logger.warning("%s did not stop within %g s of being cancelled and was left behind", name, grace_s)
            names = left_behind.get()
            if names is not None:
                names.append(name)
            abandon(task)
        else:
            retrieve(task)
    return stubborn


def abandon(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    if inspect.iscoroutine(coroutine):
        inner = coroutine.cr_await
        while inspect.iscoroutine(inner):
            _resisting.append(inner)
            inner = inner.cr_await
        with suppress(Exception, LimitReached):
            coroutine.close()
        _resisting[:] = [left for left in _resisting if left.cr_frame is not None]
    task.cancel()
    task.add_done_callback(retrieve)


def retrieve(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def stop_tasks(tasks: Iterable[asyncio.Task[Any]], grace_s: float) -> list[asyncio.Task[Any]]:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if not running:
        return []
    done, pending = await asyncio.wait(running, timeout=grace_s)
    for task in done:
        retrieve(task)
    for task in pending:
        abandon(task)
    return list(pending)


async def run_main(work: Awaitable[T]) -> T:
    """Await `work` as the only work of an event loop: tasks and threads that user code leaves running delay the end of
    the loop and of the process by a grace at most."""
    asyncio.get_running_loop().set_default_executor(_DaemonThreads())
    try:
        return await work
    finally:
        current = asyncio.current_task()
        await stop_tasks([task for task in asyncio.all_tasks() if task is not current], LAST_GRACE_S)


class _DaemonThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`, which a hanging function does not keep from ending with the process."""

    def __init__(self) -> None:
        super().__init__(1)
        self._slots = threading.BoundedSemaphore(MAX_THREADS)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def run_in_slot() -> Any:
            with self._slots:
                return fn(*args, **kwargs)

        return _start_thread(run_in_slot, "osmosis-worker")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


def in_thread(function: Callable[..., T], /, *args: object, **kwargs: object) -> asyncio.Future[T]:
    context = contextvars.copy_context()
    call = functools.partial(context.run, function, *args, **kwargs)
    return asyncio.wrap_future(_start_thread(call, f"osmosis-{getattr(function, '__name__', 'call')}"))


def _start_thread(function: Callable[[], T], name: str) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function()
        except StopIteration as error:  # a future refuses this one: it would end the generator that waits for it
            future.set_exception(RuntimeError(f"the function raised StopIteration: {error}"))
        except BaseException as error:  # noqa: BLE001 - carried to the caller, whatever it is
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        inbox = _idle_threads.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=_serve_thread, args=(inbox,), daemon=True).start()
    inbox.put((name, run))
    return future


# Starting a thread for each score function took an eighth of a run against a stub endpoint.
_idle_threads: list[SimpleQueue[tuple[str, Callable[[], None]]]] = []
os.register_at_fork(after_in_child=_idle_threads.clear)  # a child has none of the threads


def _serve_thread(inbox: SimpleQueue[tuple[str, Callable[[], None]]]) -> None:
    """Run one function after another; a thread whose function hangs is never handed another one."""
    while True:
        try:
            name, run = inbox.get(timeout=IDLE_THREAD_S)
        except Empty:
            try:
                _idle_threads.remove(inbox)
            except ValueError:
                continue  # taken just now: its function is on the way
            return
        threading.current_thread().name = name
        run()
        del run
        threading.current_thread().name = "osmosis-idle"
        _idle_threads.append(inbox)


def is_async(function: Callable[..., object]) -> bool:
    target = inspect.unwrap(function)
    while hasattr(target, "func") and not inspect.isfunction(target):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        inspect.getattr_static(type(target), "__call__", None)
    )
