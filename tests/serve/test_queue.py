"""The queue of a rollout server, and its results: one end per rollout, never dropped, never doubled by us."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from osmosis.records.run.rollout import Category
from osmosis.serve.server.callbacks import MAX_AGE_S, DeliveryPolicy, Post, ResultDelivery, Spool, spool_folder
from osmosis.serve.server.queue import AcceptedRollout, Draining, QueueFull, RolloutOutcome, RolloutQueue, ServeLimits
from support.server import answering
from support.waiting import until


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


QUICK = DeliveryPolicy(quick_tries=3, base_delay_s=0.01, max_delay_s=0.01, slow_delay_s=0.02)


class Receiver:
    """Answers with the given statuses, then 200; keeps what it was sent."""

    def __init__(self, *statuses: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.statuses = list(statuses)
        self.body = body
        self.headers = headers or {}
        self.seen: list[tuple[str, str, str | None]] = []
        self.times: list[float] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.times.append(asyncio.get_running_loop().time())
        self.seen.append((request.path, await request.text(), request.headers.get("Authorization")))
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            request.transport.abort()
        return web.Response(status=status or 500, headers=self.headers, body=self.body)


@asynccontextmanager
async def receiving(receiver: Receiver) -> AsyncIterator[Receiver]:
    async with answering(receiver.take, "/{name}") as receiver.url:
        yield receiver


@asynccontextmanager
async def delivering(
    folder: Path | None, *, close_s: float = 5.0, policy: DeliveryPolicy = QUICK
) -> AsyncIterator[ResultDelivery]:
    delivery = ResultDelivery(spool=Spool(folder) if folder else None, policy=policy)
    delivery.start()
    try:
        yield delivery
    finally:
        await delivery.close(close_s)


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_every_2xx_is_success(status: int) -> None:
    async with receiving(Receiver(status)) as receiver, delivering(None) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", "{}", "key"))
        await until(lambda: not delivery.waiting)
    assert receiver.seen == [("/done", "{}", "Bearer key")]


@pytest.mark.parametrize("fault", [500, 503, 429, 408, 0])
async def test_what_may_pass_is_tried_again_with_the_same_bytes(tmp_path: Path, fault: int) -> None:
    async with receiving(Receiver(*[fault] * 6)) as receiver, delivering(tmp_path) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", '{"a":1}'))
        await until(lambda: delivery.delivered == 1)
    assert len(receiver.seen) == 7
    assert len(set(receiver.seen)) == 1
    assert list(tmp_path.rglob("*.json")) == []


async def test_retry_after_is_waited_for() -> None:
    async with receiving(Receiver(429, headers={"Retry-After": "0.3"})) as receiver, delivering(None) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", "{}"))
        await until(lambda: delivery.delivered == 1)
    assert receiver.times[1] - receiver.times[0] >= 0.3


@pytest.mark.parametrize("status", [400, 401, 404, 302])
async def test_a_refusal_is_final_and_kept_aside(tmp_path: Path, status: int) -> None:
    async with receiving(Receiver(status)) as receiver, delivering(tmp_path) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", "{}"))
        await until(lambda: delivery.refused == 1)
    assert len(receiver.seen) == 1
    assert len(list((tmp_path / "refused").glob("*.json"))) == 1


async def test_what_cannot_even_be_sent_is_kept_aside(tmp_path: Path) -> None:
    async with receiving(Receiver()) as receiver, delivering(tmp_path) as delivery:
        delivery.send(Post("one", "not a url", "{}"))
        delivery.send(Post("other", f"{receiver.url}/x", "{}", "a\nb"))
        delivery.send(Post("good", f"{receiver.url}/x", "{}"))
        await until(lambda: delivery.refused == 2 and delivery.delivered == 1)
    assert len(list((tmp_path / "refused").glob("*.json"))) == 2


@pytest.mark.parametrize(
    ("statuses", "heard"), [([], [b"thanks" * 100]), ([500] * 3, [None, b"thanks" * 100]), ([400], [None])]
)
async def test_a_listener_hears_the_answer_or_that_it_takes_long(
    tmp_path: Path, statuses: list[int], heard: list[bytes | None]
) -> None:
    said: list[bytes | None] = []
    async with receiving(Receiver(*statuses, body=b"thanks" * 100)) as receiver, delivering(tmp_path) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", "{}"), said.append)
        await until(lambda: not delivery.waiting)
    assert said == heard


async def test_a_listener_hears_of_the_end_of_the_server(tmp_path: Path) -> None:
    said: list[bytes | None] = []
    async with receiving(Receiver(*[500] * 1000)) as receiver, delivering(tmp_path, close_s=0.0) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", "1"))
        delivery.send(Post("r", f"{receiver.url}/done", "2"), said.append)
        await until(lambda: len(receiver.seen) == 1)
    assert said[-1] is None


async def test_a_post_that_waits_behind_another_hears_that_it_takes_long(tmp_path: Path) -> None:
    said: list[bytes | None] = []
    async with receiving(Receiver(*[500] * 4)) as receiver, delivering(tmp_path) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", "1"))
        delivery.send(Post("r", f"{receiver.url}/done", "2"), said.append)
        await until(lambda: len(receiver.seen) == 4)
        assert said == [None]
        await until(lambda: not delivery.waiting)
    assert said == [None, b""]


async def test_any_rollout_id_can_be_delivered() -> None:
    async with receiving(Receiver()) as receiver, delivering(None) as delivery:
        delivery.send(Post("r\n/\u00e4 \u4e00", f"{receiver.url}/done", "{}"))
        await until(lambda: delivery.delivered == 1)


async def test_posts_of_one_rollout_keep_their_order() -> None:
    async with receiving(Receiver(500, 500)) as receiver, delivering(None) as delivery:
        delivery.send(Post("r", f"{receiver.url}/completion", "1"))
        delivery.send(Post("r", f"{receiver.url}/grader", "2"))
        await until(lambda: not delivery.waiting)
    assert [path for path, _, _ in receiver.seen] == ["/completion"] * 3 + ["/grader"]


async def test_an_undelivered_result_is_spooled_and_sent_at_the_next_start(tmp_path: Path) -> None:
    async with receiving(Receiver()) as receiver:
        url = receiver.url
    async with delivering(tmp_path, close_s=0.1) as delivery:
        delivery.send(Post("r", f"{url}/done", '{"the": "result"}', "key"))
        assert delivery.has("r")
    [spooled] = tmp_path.rglob("*.json")
    assert stat.S_IMODE(spooled.stat().st_mode) == 0o600
    assert stat.S_IMODE(spooled.parent.stat().st_mode) == 0o700

    async with receiving(Receiver(500)) as receiver:
        spooled.write_text(spooled.read_text().replace(url, receiver.url))
        async with delivering(tmp_path) as delivery:
            assert delivery.has("r")
            await until(lambda: delivery.delivered == 1)
    assert receiver.seen[-1] == ("/done", '{"the": "result"}', "Bearer key")
    assert list(tmp_path.rglob("*.json")) == []
    assert list(tmp_path.glob("server-*")) == []


async def test_a_living_server_keeps_its_spool_to_itself(tmp_path: Path) -> None:
    first, second = Spool(tmp_path), Spool(tmp_path)
    path = first.add(Post("r", "http://127.0.0.1:9/x", "{}"))
    assert list(second.adopt()) == []
    first.close()
    assert [found for found, _ in second.adopt()] == [path]
    second.close()


async def test_old_and_broken_files_do_not_stop_the_start(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    old = spool.add(Post("old", "http://127.0.0.1:9/x", "{}"))
    broken = spool.add(Post("broken", "http://127.0.0.1:9/x", "{}"))
    spool.close()
    os.utime(old, (old.stat().st_mtime - MAX_AGE_S - 10,) * 2)
    broken.write_text("not json")
    again = Spool(tmp_path)
    assert list(again.adopt()) == []
    again.close()
    assert broken.exists()
    assert (tmp_path / "refused" / old.name).exists()


async def test_tries_end_after_the_stated_time(tmp_path: Path) -> None:
    policy = replace(QUICK, max_age_s=0.2)
    async with receiving(Receiver(*[503] * 1000)) as receiver, delivering(tmp_path, policy=policy) as delivery:
        delivery.send(Post("r", f"{receiver.url}/done", "{}"))
        await until(lambda: delivery.refused == 1)
    assert len(list((tmp_path / "refused").glob("*.json"))) == 1
    assert not list(tmp_path.glob("server-*"))


async def test_a_spool_belongs_to_an_agent_and_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        found += [spool_folder(tmp_path, "calculator"), spool_folder(tmp_path, "../calc ulator")]
        assert spool_folder(tmp_path, "calculator") == found[-2]
    assert len(set(found)) == 4
    assert {path.parent for path in found} == {tmp_path}
