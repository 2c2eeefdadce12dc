"""Plain functions off the event loop, in threads that no exit waits for.

The loop's own executor is joined when the loop closes, so one function that hangs would hold Ctrl-C and the end of
a run; these threads are left behind instead. Whoever calls bounds how many run.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
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
