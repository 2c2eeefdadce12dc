"""What surrounds user code in this process. Ctrl-C can be trusted: the first lets what is in flight finish, the second
cuts it off. What the code prints stays out of the results.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def print_aside() -> contextlib.redirect_stdout[Any]:
    """What agents and score functions print goes to stderr: stdout is the result's, which a program may read."""
    return contextlib.redirect_stdout(sys.stderr)


def run_stoppable(go: Callable[[asyncio.Event], Awaitable[T]], say: Callable[[str], None]) -> tuple[T, bool]:
    """Runs `go(stop)` to its end; the result, and whether somebody interrupted. Cut off, it is `KeyboardInterrupt`."""
    interrupted = False

    async def main() -> T:
        nonlocal interrupted
        stop = asyncio.Event()
        work = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            nonlocal interrupted
            if interrupted and work is not None:
                work.cancel()
                return
            interrupted = True
            stop.set()
            say("stopping: rollouts in flight may finish; once more cuts them off")

        with _handled(loop, on_signal):
            return await go(stop)

    gc.freeze()  # what is loaded by now stays: the collector need not look at it with every rollout
    try:
        return asyncio.run(main()), interrupted
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextmanager
def _handled(loop: asyncio.AbstractEventLoop, on_signal: Any) -> Iterator[None]:
    handled = []
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, on_signal)
            handled.append(number)
        except (NotImplementedError, RuntimeError, ValueError):
            pass  # not the main thread: whoever runs us there handles signals
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
