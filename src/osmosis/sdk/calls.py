"""Calling user code: contained, under a time limit, off the event loop.

At its limit a coroutine is cancelled and given a short grace; after that the caller continues without it.
Plain functions run in threads that no exit waits for: the loop's own executor is joined when the loop closes, so one
function that hangs would hold Ctrl-C and the end of a run. Whoever calls bounds how many run.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from .driven import CodeExited as CodeExited
from .driven import driven, leave, loop_user

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 5.0
LAST_GRACE_S = 2.0
"""For what is still running when everything is over."""

tool_time_limit: ContextVar[float | None] = ContextVar("osmosis_tool_time_limit", default=None)
"""Seconds for every tool call that brings no limit of its own; an evaluation sets it from its plan."""


class DeadlineExceeded(Exception):
    """The time limit passed, `seconds` of it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"time limit of {seconds:g} s exceeded")
        self.seconds = seconds


class SelfCancelled(Exception):
    """The coroutine was cancelled from inside, not by its caller."""


async def contained(work: Awaitable[T]) -> T:
    """The result of `work`; `CodeExited` for an exception that would end the whole process, as `sys.exit` does."""
    return await driven(as_coroutine(work))


def as_coroutine(work: Awaitable[T]) -> Coroutine[Any, Any, T]:
    """`work`, which may be anything that can be awaited."""
    if inspect.iscoroutine(work):
        return work

    async def whole() -> T:
        return await work

    return whole()


async def end_all(tasks: Iterable[asyncio.Task[Any]], grace_s: float) -> list[asyncio.Task[Any]]:
    """Cancels the tasks and waits for them, at most `grace_s`; those that go on are left, and returned."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if not running:
        return []
    done, pending = await asyncio.wait(running, timeout=grace_s)
    for task in done:
        if not task.cancelled():
            task.exception()
    for task in pending:
        leave(task)
    return list(pending)


async def alone(work: Awaitable[T]) -> T:
    """The result of `work`, which has the event loop for itself: tasks and threads that user code leaves running hold
    neither the end of the loop nor that of the process for longer than a grace."""
    asyncio.get_running_loop().set_default_executor(_DaemonThreads())
    try:
        return await work
    finally:
        current = asyncio.current_task()
        await end_all([task for task in asyncio.all_tasks() if task is not current], LAST_GRACE_S)


class _DaemonThreads(ThreadPoolExecutor):
    """For `asyncio.to_thread` and `run_in_executor(None, ...)`: the usual executor is joined when the process ends, so
    that one function that hangs would hold it for ever."""

    def __init__(self, most: int = 32) -> None:
        super().__init__(1)
        self._most = most
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._count = 0
        self._idle = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.put((future, functools.partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            threading.Thread(target=self._run, daemon=True, name=f"osmosis-worker-{self._count}").start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to wait for."""

    def _run(self) -> None:
        while True:
            future, function = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - carried to the caller, whatever it is
                    future.set_exception(error)
            self._idle.release()


async def run_with_deadline(
    work: Coroutine[Any, Any, T], seconds: float | None, *, grace_s: float = GRACE_S, name: str | None = None
) -> T:
    """The result of `work`; `DeadlineExceeded` after `seconds` (None = no limit).

    Code that blocks the loop past its limit counts as late, although it ran to its end. Cancelling the caller
    cancels `work`.
    """
    started = time.monotonic()
    task: asyncio.Task[T] = asyncio.get_running_loop().create_task(contained(work), name=name)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task, grace_s)
        raise
    if not done:
        await _stop(task, grace_s)
        raise DeadlineExceeded(seconds or 0.0)
    if seconds is not None and time.monotonic() - started > seconds + 0.25:
        if not task.cancelled():
            task.exception()
        raise DeadlineExceeded(seconds)
    if task.cancelled():
        raise SelfCancelled("the code cancelled its own task")
    return task.result()


async def _stop(task: asyncio.Task[T], grace_s: float) -> None:
    task.cancel()
    try:
        await asyncio.wait({task}, timeout=grace_s)
    finally:
        if not task.done():
            logger.warning(
                "%s did not stop within %g s of being cancelled and is still running; no longer waiting for it",
                task.get_name(),
                grace_s,
            )
            leave(task)
            user = loop_user.get()
            if user is not None:
                user.left_behind.append(task.get_name())
        elif not task.cancelled():
            task.exception()


async def in_thread(function: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    """The result of `function(*args, **kwargs)`, run in a thread of its own with the caller's context variables."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except StopIteration as exc:
            # A future refuses this one: it would end the generator that waits for it.
            error = RuntimeError(f"the function raised StopIteration: {exc}")
        except BaseException as exc:  # noqa: BLE001 - carried to the caller, whatever it is
            error = exc
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    threading.Thread(target=work, name=f"osmosis-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return await outcome


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling gives a coroutine: `async def`, or an object whose `__call__` is."""
    target = inspect.unwrap(function)
    while hasattr(target, "func") and not inspect.isfunction(target):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        inspect.getattr_static(type(target), "__call__", None)
    )
