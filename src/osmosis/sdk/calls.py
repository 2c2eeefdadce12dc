"""Calling user code: contained, under a time limit, off the event loop.

At its limit a coroutine is cancelled and given a short grace; after that the caller continues without it.
Plain functions run in threads that no exit waits for: the loop's own executor is joined when the loop closes, so one
function that hangs would hold Ctrl-C and the end of a run. Whoever calls bounds how many run.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 5.0

tool_time_limit: ContextVar[float | None] = ContextVar("osmosis_tool_time_limit", default=None)
"""Seconds for every tool call that brings no limit of its own; an evaluation sets it from its plan."""


class DeadlineExceeded(Exception):
    """The time limit passed, `seconds` of it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"time limit of {seconds:g} s exceeded")
        self.seconds = seconds


class CodeExited(Exception):
    """The code called `sys.exit`, or raised something else that is meant to end a process."""


class SelfCancelled(Exception):
    """The coroutine was cancelled from inside, not by its caller."""


async def contained(work: Awaitable[T]) -> T:
    """The result of `work`; `CodeExited` for an exception that would end the whole process, as `sys.exit` does."""
    try:
        return await work
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as exc:
        # asyncio lets these through its tasks: one rollout's sys.exit() would stop the server with all the others.
        raise CodeExited(f"the code raised {type(exc).__name__}({exc}), which would have ended the process") from exc


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
            task.add_done_callback(_retrieve)
        elif not task.cancelled():
            task.exception()


def _retrieve(task: asyncio.Task[T]) -> None:
    # Nobody waits for an abandoned task's exception; without this asyncio reports it as never retrieved.
    if not task.cancelled():
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
