"""LoopPacer: few at once, everyone in the end, in order."""

from __future__ import annotations

import asyncio

from osmosis.serve.server.queue import LoopPacer


async def test_a_pass_of_the_loop_gives_few_turns_and_everyone_gets_one_in_order() -> None:
    pacer, order, passes = LoopPacer(3), [], 0
    running = True

    async def count_passes() -> None:
        nonlocal passes
        while running:
            passes += 1
            await asyncio.sleep(0)

    async def take(number: int) -> None:
        await pacer.pace()
        order.append((passes, number))

    counter = asyncio.create_task(count_passes())
    waiting = [asyncio.create_task(take(number)) for number in range(20)]
    waiting[5].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    running = False
    await counter
    assert [number for _, number in order] == [number for number in range(20) if number != 5]
    per_pass = [sum(1 for when, _ in order if when == one) for one in range(passes + 1)]
    assert max(per_pass) <= 3
    await asyncio.wait_for(pacer.pace(), 1)
