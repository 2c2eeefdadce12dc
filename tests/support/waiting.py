"""Waits for a condition with a deadline: what tests use in place of a sleep."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within: float = 10.0, what: str = "the condition") -> None:
    """Returns once `condition()` is true; `AssertionError` when it is not within `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within:g} s")
        await asyncio.sleep(0.005)
