"""The queue: slots, order, exactly one end per rollout."""

from __future__ import annotations

import asyncio

import pytest

from osmosis.records.rollout import Category
from osmosis.serve.server.queue import AcceptedRollout, Draining, QueueFull, RolloutOutcome, RolloutQueue, ServeLimits
from osmosis.testing.waiting import until


async def done(_: AcceptedRollout) -> RolloutOutcome:
    await asyncio.sleep(0)
    return RolloutOutcome("success")


async def never(_: AcceptedRollout) -> RolloutOutcome:
    await asyncio.Event().wait()
    raise AssertionError


async def test_rollouts_run_in_order_and_never_more_than_the_slots() -> None:
    queue, order, running, most = RolloutQueue(3, ServeLimits()), [], 0, 0

    async def count(entry: AcceptedRollout) -> RolloutOutcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(entry.id)
        await asyncio.sleep(0)
        running -= 1
        return RolloutOutcome("success")

    for index in range(20):
        queue.accept(AcceptedRollout(f"{index:02d}", count, 60))
    await until(lambda: queue.active == 0)
    assert order == sorted(order)
    assert most == 3
    assert queue.finished == 20


async def test_whatever_happens_a_rollout_ends_once() -> None:
    queue, ends = RolloutQueue(None, ServeLimits()), []

    async def stubborn(_: AcceptedRollout) -> RolloutOutcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return RolloutOutcome("success")  # too late: it has been ended already
        raise AssertionError

    async def crash(_: AcceptedRollout) -> RolloutOutcome:
        raise RuntimeError("boom")

    for name, execute, limit in [
        ("ok", done, 60),
        ("late", stubborn, 0.01),
        ("crash", crash, 60),
        ("stuck", never, 60),
    ]:
        queue.accept(AcceptedRollout(name, execute, limit, on_end=lambda entry: ends.append((entry.id, entry.outcome))))
    await until(lambda: len(ends) == 3)
    assert queue.cancel(["stuck", "ok"]) == {"stuck": "cancelled_running", "ok": "not_found"}
    await asyncio.sleep(0.02)
    outcomes = dict(ends)
    assert len(ends) == len(outcomes) == 4
    assert outcomes["ok"].status == "success"
    assert outcomes["late"].failure.category is Category.TIMEOUT
    assert "boom" in outcomes["crash"].failure.message
    assert "boom" in outcomes["crash"].failure.traceback
    assert outcomes["stuck"].status == "cancelled"


async def test_a_rollout_that_will_not_stop_loses_its_slot() -> None:
    release = asyncio.Event()

    async def deaf(_: AcceptedRollout) -> RolloutOutcome:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return RolloutOutcome("success")

    queue = RolloutQueue(1, ServeLimits(abandon_after_s=0.02))
    queue.accept(AcceptedRollout("deaf", deaf, 0.01))
    queue.accept(AcceptedRollout("next", done, 60))
    await until(lambda: queue.finished == 2)
    release.set()
    await asyncio.sleep(0.01)
    assert queue.finished == 2
    queue.accept(AcceptedRollout("again", done, 60))
    await until(lambda: queue.finished == 3)


async def test_a_full_or_draining_desk_refuses() -> None:
    queue = RolloutQueue(1, ServeLimits(max_queue=1))
    queue.accept(AcceptedRollout("running", never, 60))
    queue.accept(AcceptedRollout("queued", never, 60))
    with pytest.raises(QueueFull):
        queue.accept(AcceptedRollout("more", never, 60))
    await queue.drain(0.01)
    assert queue.active == 0
    assert queue.finished == 2
    with pytest.raises(Draining):
        queue.accept(AcceptedRollout("late", done, 60))


async def test_hurry_cuts_a_drain_short() -> None:
    queue = RolloutQueue(1, ServeLimits())
    queue.accept(AcceptedRollout("running", never, 60))
    drain = asyncio.create_task(queue.drain(60))
    await until(lambda: not queue.accepting)
    queue.hurry()
    await asyncio.wait_for(drain, 5)
    assert queue.finished == 1
