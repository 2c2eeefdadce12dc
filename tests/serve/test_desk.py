"""The desk: slots, order, exactly one end per rollout."""

from __future__ import annotations

import asyncio

import pytest

from osmosis.records.rollout import Category
from osmosis.serve.server.limits import ServeLimits
from osmosis.serve.server.outcome import Outcome
from osmosis.serve.server.queue import Desk, Draining, Entry, QueueFull
from osmosis.testing.waiting import until


async def done(_: Entry) -> Outcome:
    await asyncio.sleep(0)
    return Outcome("success")


async def never(_: Entry) -> Outcome:
    await asyncio.Event().wait()
    raise AssertionError


async def test_rollouts_run_in_order_and_never_more_than_the_slots() -> None:
    desk, order, running, most = Desk(3, ServeLimits()), [], 0, 0

    async def count(entry: Entry) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(entry.id)
        await asyncio.sleep(0)
        running -= 1
        return Outcome("success")

    for index in range(20):
        desk.accept(Entry(f"{index:02d}", count, 60))
    await until(lambda: desk.active == 0)
    assert order == sorted(order)
    assert most == 3
    assert desk.finished == 20


async def test_whatever_happens_a_rollout_ends_once() -> None:
    desk, ends = Desk(None, ServeLimits()), []

    async def stubborn(_: Entry) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Outcome("success")  # too late: it has been ended already
        raise AssertionError

    async def crash(_: Entry) -> Outcome:
        raise RuntimeError("boom")

    for name, execute, limit in [
        ("ok", done, 60),
        ("late", stubborn, 0.01),
        ("crash", crash, 60),
        ("stuck", never, 60),
    ]:
        desk.accept(Entry(name, execute, limit, on_end=lambda entry: ends.append((entry.id, entry.outcome))))
    await until(lambda: len(ends) == 3)
    assert desk.cancel(["stuck", "ok"]) == {"stuck": "cancelled_running", "ok": "not_found"}
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

    async def deaf(_: Entry) -> Outcome:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return Outcome("success")

    desk = Desk(1, ServeLimits(abandon_after_s=0.02))
    desk.accept(Entry("deaf", deaf, 0.01))
    desk.accept(Entry("next", done, 60))
    await until(lambda: desk.finished == 2)
    release.set()
    await asyncio.sleep(0.01)
    assert desk.finished == 2
    desk.accept(Entry("again", done, 60))
    await until(lambda: desk.finished == 3)


async def test_a_full_or_draining_desk_refuses() -> None:
    desk = Desk(1, ServeLimits(max_queue=1))
    desk.accept(Entry("running", never, 60))
    desk.accept(Entry("queued", never, 60))
    with pytest.raises(QueueFull):
        desk.accept(Entry("more", never, 60))
    await desk.drain(0.01)
    assert desk.active == 0
    assert desk.finished == 2
    with pytest.raises(Draining):
        desk.accept(Entry("late", done, 60))


async def test_hurry_cuts_a_drain_short() -> None:
    desk = Desk(1, ServeLimits())
    desk.accept(Entry("running", never, 60))
    drain = asyncio.create_task(desk.drain(60))
    await until(lambda: not desk.accepting)
    desk.hurry()
    await asyncio.wait_for(drain, 5)
    assert desk.finished == 1
