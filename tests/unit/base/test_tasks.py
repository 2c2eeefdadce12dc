"""Tasks that are not wanted any more end, also one that forgot that it was cancelled."""

from __future__ import annotations

import asyncio

from osmosis.base.tasks import end


async def test_a_task_that_forgot_its_cancellation_is_cancelled_again() -> None:
    heard = 0

    async def forgetful() -> None:
        nonlocal heard
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard += 1
        await asyncio.sleep(3600)

    async def failing() -> None:
        raise ValueError("seen by nobody")

    tasks = [asyncio.create_task(forgetful()), asyncio.create_task(failing())]
    await asyncio.sleep(0)
    await asyncio.wait_for(end(*tasks, again_s=0.01), 60)
    assert (heard, tasks[0].cancelled(), tasks[1].done()) == (1, True, True)
