"""Time limits of many rollouts on one event loop: each is kept for itself, behind one timer for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from osmosis.engine.clock import Deadline


class CountingLoop(asyncio.SelectorEventLoop):
    """Knows how many timers were set."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = 0

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)


async def limited(seconds: float | None, works_s: float) -> str:
    limit = Deadline(seconds)
    try:
        with limit:
            await limit.run(asyncio.sleep(works_s, "done"))
    except asyncio.TimeoutError:
        return "over"
    return "done"


def test_code_that_ends_in_time_sets_no_timer_of_its_own() -> None:
    loop = CountingLoop()

    async def code() -> str:
        limit = Deadline(60.0)
        with limit:
            await limit.run(asyncio.sleep(0))
        return "done"

    async def many() -> list[str]:
        return [await code() for _ in range(500)]

    try:
        assert loop.run_until_complete(many()) == ["done"] * 500
    finally:
        loop.close()
    assert loop.timers == 1


async def test_each_limit_is_kept_whatever_the_others_are() -> None:
    waits = [limited(30.0, 0.3), limited(0.05, 30.0), limited(None, 0.2), limited(0.15, 30.0), limited(0.1, 0.01)]
    assert await asyncio.gather(*waits) == ["done", "over", "done", "over", "done"]


async def test_a_limit_that_is_moved_is_over_later() -> None:
    with Deadline(0.05) as moved:
        moved.extend(30.0)
        await asyncio.sleep(0.15)
    assert not moved.fired


async def test_a_limit_that_begins_anew_is_over_in_its_time_although_it_was_moved_before() -> None:
    limit = Deadline(0.1)

    async def code() -> None:
        limit.extend(30.0)
        await asyncio.sleep(0.2)  # the timer has looked, and waits for the moved end now
        limit.restart()
        await asyncio.wait_for(asyncio.sleep(10), 5)

    with pytest.raises(asyncio.TimeoutError), limit:
        await code()
    assert limit.fired


async def test_a_limit_that_was_stopped_is_never_over() -> None:
    with Deadline(0.05) as limit:
        limit.stop()
        await asyncio.sleep(0.15)
    assert not limit.fired
