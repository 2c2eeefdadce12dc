"""The threads of score functions: woken as they are needed, replaced when they hang."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from osmosis.engine.pool import DaemonPool


async def test_quick_functions_share_a_thread_and_slow_ones_get_their_own() -> None:
    pool = DaemonPool(8, look_s=3600.0)
    names = {await pool.run(lambda: threading.current_thread().name) for _ in range(50)}
    assert names == {"score-1"}
    pool.close()
    pool = DaemonPool(8)
    together = threading.Barrier(8)
    await asyncio.wait_for(asyncio.gather(*(pool.run(lambda: together.wait(10)) for _ in range(8))), 20)
    pool.close()


async def test_every_function_is_called_however_many_come_at_once() -> None:
    pool = DaemonPool(3)
    for count in (1, 2, 500):
        found = await asyncio.wait_for(
            asyncio.gather(*(pool.run(lambda i=i: time.sleep(0.0001 * (i % 3)) or i) for i in range(count))), 30
        )
        assert found == list(range(count))
    pool.close()


async def test_a_thread_that_hangs_is_replaced_and_waiting_is_not_a_functions_own_time() -> None:
    pool, release = DaemonPool(1), threading.Event()
    hung = asyncio.create_task(pool.run(release.wait, 0.2))
    behind = asyncio.create_task(pool.run(lambda: "done", 0.2))
    with pytest.raises(asyncio.TimeoutError):
        await hung
    assert await asyncio.wait_for(behind, 10) == "done"
    assert await asyncio.wait_for(pool.run(lambda: 2, 5.0), 10) == 2
    with pytest.raises(asyncio.TimeoutError):  # a shorter limit than that of the timer that is set
        await asyncio.wait_for(pool.run(release.wait, 0.1), 4)
    release.set()
    pool.close()


def test_a_pool_serves_one_event_loop_after_another() -> None:
    pool = DaemonPool(2)
    for _ in range(2):
        assert asyncio.run(pool.run(lambda: 1, 5.0)) == 1
    pool.close()
