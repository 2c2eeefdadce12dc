"""Rollouts over several servers: shared out by room, begun anew where one is lost, a clear end when none is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from osmosis.engine.agent import Agent
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.jobs.context import JobFailed, JobLog, setup_failure
from osmosis.jobs.server.pool import TRIES, Server, ServerPool
from osmosis.llm import open_model
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus
from osmosis.records.run.rows import Row
from osmosis.serve.client.model_proxy import ModelProxy
from support.waiting import until

MODEL = ModelSpec(name="offline/calculator", kind="offline")
PLAN = EvalPlan(name="r", agent="a", model=MODEL, dataset="d")
GONE = Failure(phase=Phase.SETUP, category=Category.SERVER_DIED, message="gone")


class OneServer:
    """Rollouts wait on it until they are let go."""

    def __init__(self, name: str, at_once: int | None) -> None:
        self.name = name
        self.at_once = at_once
        self.up = True
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self.on_change: Callable[[], None] = lambda: None
        self.began: list[str] = []
        self.on_it: dict[str, asyncio.Future[Failure | None]] = {}
        self.most = 0

    @asynccontextmanager
    async def running(self, gate: ModelProxy, plan: EvalPlan) -> AsyncIterator[Agent]:
        yield self

    async def stop(self) -> None: ...

    def lost(self, rollout: Rollout) -> bool:
        return rollout.failure is GONE

    def end(self, failure: Failure | None = None) -> None:
        """All that are on it."""
        for waiting in self.on_it.values():
            if not waiting.done():
                waiting.set_result(failure)

    def go_away(self) -> None:
        self.up = False
        self.end(GONE)
        self.on_change()

    def come_back(self) -> None:
        self.up = True
        self.on_change()

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        assert task.rollout_id not in self.on_it
        self.began.append(task.rollout_id)
        done = self.on_it[task.rollout_id] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.on_it))
        try:
            failure = await done
        finally:
            del self.on_it[task.rollout_id]
        status = RolloutStatus.FAILED if failure else RolloutStatus.SUCCESS
        return Rollout(rollout_id=task.rollout_id, row_index=0, attempt=0, status=status, messages=[], failure=failure)


@asynccontextmanager
async def pool_of(*servers: Server, patience_s: float = 60.0) -> AsyncIterator[tuple[ServerPool, Agent]]:
    pool = ServerPool(servers, JobLog(), patience_s=patience_s)
    async with pool.running(ModelProxy(open_model(MODEL)), PLAN) as rollout:
        yield pool, rollout


def begun(rollout: Agent, count: int) -> list[asyncio.Task[Rollout]]:
    tasks = (Task(row=Row(index=n, data={}, key=f"k{n}"), attempt=0, rollout_id=f"r{n}") for n in range(count))

    async def one(task: Task) -> Rollout:
        return await rollout.run(task, RolloutModel(None, task))

    return [asyncio.create_task(one(task)) for task in tasks]


async def all_of(tasks: Sequence[asyncio.Task[Rollout]], *servers: OneServer) -> list[Rollout]:
    """Lets every rollout end, wherever it is."""
    gathered = asyncio.gather(*tasks)
    while not gathered.done():
        for server in servers:
            server.end()
        await asyncio.sleep(0)
    return await gathered


async def test_they_are_shared_out_by_room_and_the_faster_server_does_more() -> None:
    slow, quick = OneServer("slow", 4), OneServer("quick", 2)
    async with pool_of(slow, quick) as (_, rollout):
        tasks = begun(rollout, 20)
        await until(lambda: len(slow.on_it) == 4 and len(quick.on_it) == 2)
        while len(quick.began) < 16:  # what waits goes to who has room, in turn
            quick.end()
            await asyncio.sleep(0)
        await all_of(tasks, slow, quick)
    assert (slow.most, quick.most) == (4, 2)
    assert len(slow.began) == 4
    assert quick.began[-10:] == [f"r{n}" for n in range(10, 20)]
    assert Counter(slow.began + quick.began) == Counter(f"r{n}" for n in range(20))


async def test_what_a_lost_server_had_begins_anew_on_another_and_it_gets_no_more_until_it_is_back() -> None:
    east, west = OneServer("east", None), OneServer("west", None)
    async with pool_of(east, west) as (pool, rollout):
        tasks = begun(rollout, 8)
        await until(lambda: len(east.on_it) == len(west.on_it) == 4)
        east.go_away()
        await until(lambda: len(west.on_it) == 8)
        more = begun(rollout, 9)[8:]
        await until(lambda: "r8" in west.on_it)
        east.come_back()
        again = begun(rollout, 10)[9:]
        await until(lambda: "r9" in east.on_it)
        done = await all_of([*tasks, *more, *again], east, west)
    assert [one.status for one in done] == [RolloutStatus.SUCCESS] * 10
    assert not pool.failed.done()


async def test_a_rollout_that_ends_every_server_has_failed() -> None:
    servers = [OneServer(f"s{n}", None) for n in range(TRIES + 2)]
    async with pool_of(*servers) as (_, rollout):
        (task,) = begun(rollout, 1)
        for _ in range(TRIES):
            await until(lambda: any(server.on_it for server in servers))
            next(server for server in servers if server.on_it).end(GONE)
            await asyncio.sleep(0)
        assert (await task).failure is GONE
    assert [len(server.began) for server in servers] == [1] * TRIES + [0, 0]


async def test_what_waits_for_nobody_takes_no_room() -> None:
    only = OneServer("only", 1)
    async with pool_of(only) as (_, rollout):
        tasks = begun(rollout, 3)
        await until(lambda: only.on_it)
        tasks[1].cancel()
        tasks[0].cancel()
        await until(lambda: "r2" in only.on_it)
        only.end()
        assert (await tasks[2]).status is RolloutStatus.SUCCESS
    assert only.began == ["r0", "r2"]


async def test_none_left_is_the_runs_failure_and_is_waited_for_first() -> None:
    east, west = OneServer("east", None), OneServer("west", None)
    async with pool_of(east, west, patience_s=0.05) as (pool, rollout):
        tasks = begun(rollout, 1)
        await until(lambda: east.on_it)
        west.go_away()
        east.go_away()
        failed = await asyncio.wait_for(asyncio.shield(pool.failed), 60)
        assert failed.message == "no rollout server has answered for 0.05 s: east, west"
        assert "osmosis serve" in (failed.hint or "")
        assert not tasks[0].done(), "it is no failed rollout"
        tasks[0].cancel()


@pytest.mark.parametrize("both", [True, False])
async def test_servers_that_have_failed_for_good(both: bool) -> None:
    east, west = OneServer("east", None), OneServer("west", None)
    async with pool_of(east, west) as (pool, rollout):
        (task,) = begun(rollout, 1)
        await until(lambda: east.on_it)
        east.failed.set_result(setup_failure("it died 6 times"))
        await until(lambda: west.on_it)
        assert not east.on_it, "nobody waits for it there"
        if both:
            west.failed.set_result(setup_failure("so did this one"))
            assert (await asyncio.wait_for(asyncio.shield(pool.failed), 60)).message == "so did this one"
            task.cancel()
        else:
            assert (await all_of([task], west))[0].status is RolloutStatus.SUCCESS
