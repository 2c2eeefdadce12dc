"""Time limits of rollouts: kept, moved, begun anew and stopped."""

from __future__ import annotations

import asyncio

import pytest

from osmosis.engine.task import Deadline


async def limited(seconds: float | None, works_s: float) -> str:
    try:
        return await Deadline(seconds).run(asyncio.sleep(works_s, "done"))
    except asyncio.TimeoutError:
        return "over"


async def test_each_limit_is_kept_whatever_the_others_are() -> None:
    waits = [limited(30.0, 0.3), limited(0.05, 30.0), limited(None, 0.2), limited(0.15, 30.0), limited(0.1, 0.01)]
    assert await asyncio.gather(*waits) == ["done", "over", "done", "over", "done"]


async def test_a_limit_that_is_moved_is_over_later() -> None:
    limit = Deadline(0.05)

    async def code() -> None:
        limit.extend(30.0)
        await asyncio.sleep(0.15)

    await limit.run(code())
    assert not limit.fired


async def test_a_limit_that_begins_anew_is_over_in_its_time_although_it_was_moved_before() -> None:
    limit = Deadline(0.1)

    async def code() -> None:
        limit.extend(30.0)
        await asyncio.sleep(0.2)  # the timer has looked, and waits for the moved end now
        limit.restart()
        await asyncio.wait_for(asyncio.sleep(10), 5)

    with pytest.raises(asyncio.TimeoutError):
        await limit.run(code())
    assert limit.fired


async def test_a_limit_that_was_stopped_is_never_over() -> None:
    limit = Deadline(0.05)

    async def code() -> None:
        limit.stop()
        await asyncio.sleep(0.15)

    await limit.run(code())
    assert not limit.fired
