"""The loop: everything once, nothing lost, bounded, stoppable, resumable."""

import asyncio
from dataclasses import replace

import pytest

from osmosis.engine.evaluate import Evaluation
from osmosis.engine.journal import Journal
from osmosis.errors import OsmosisError
from osmosis.llm import open_model
from osmosis.llm.model import Completion, Piece
from osmosis.records.run.plan import Budget, ModelSpec, Retry, Timeouts
from osmosis.records.run.rollout import Usage
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.workflow import AgentWorkflow
from support.endpoint import ModelEndpoint, Reply
from support.rollout_run import as_agent
from support.waiting import until


async def test_every_row_and_attempt_once(run, make_plan, make_rows, tmp_path):
    journal = Journal(tmp_path / "j")
    report = await run(make_plan(attempts=3), make_rows(20), journal=journal)
    assert sorted((r.row_index, r.attempt) for r in journal.rollouts()) == [(r, a) for r in range(20) for a in range(3)]
    assert len(journal.finished()) == 60
    assert (report.completed, report.total, report.rows) == (60, 60, 20)
    assert 0 < report.primary.mean < 1
    assert journal.report() == report
    one = next(journal.rollouts())
    assert one.hashes == {"agent": "a", "sampling": "s", "score": "f", "row": one.hashes["row"]}
    assert one.calls[0].usage.total_tokens == one.usage.total_tokens > 0


async def test_a_failed_rollout_is_run_again_as_often_as_the_plan_says_and_all_tries_are_paid(
    make_plan, make_rows, tmp_path
):
    class Twice(RolloutAgentLoop):
        name = "asks-twice"
        runs = 0

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            self.runs += 1
            messages = list(ctx.request.messages)
            messages.append((await ctx.chat(messages)).message)
            if self.runs == 1:
                raise RuntimeError("the first try fails")
            return ctx.complete(messages)

    for retries, status, tries in ((0, "failed", 1), (2, "success", 2)):
        agent, journal = Twice(), Journal(tmp_path / str(retries))
        with ModelEndpoint() as endpoint:
            plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), retry=Retry(rollouts=retries))
            model = open_model(plan.model)
            evaluation = Evaluation(plan, make_rows(1), as_agent(agent).bind(plan), model=model, journal=journal)
            report = await evaluation.run()
            await model.close()
        (rollout,) = journal.rollouts()
        assert (rollout.status.value, len(endpoint.requests), agent.runs) == (status, tries, tries)
        assert report.usage.total_tokens == rollout.usage.total_tokens == tries * rollout.calls[0].usage.total_tokens
        assert rollout.metrics.get("retries", 0) == tries - 1


async def test_a_second_session_runs_only_what_is_owed(run, make_plan, make_rows, tmp_path):
    with ModelEndpoint() as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), attempts=2)
        first = await run(plan, make_rows(10)[:6], journal=Journal(tmp_path / "j"))
        asked = len(endpoint.requests)
        second = await run(plan, make_rows(10), journal=Journal(tmp_path / "j"))
        assert (asked, len(endpoint.requests)) == (12, 20)
    assert (first.completed, second.completed) == (12, 20)
    assert len(Journal(tmp_path / "j").run()["sessions"]) == 2


async def test_a_torn_last_line_is_owed_again(run, make_plan, make_rows, tmp_path):
    await run(make_plan(), make_rows(5), journal=Journal(tmp_path / "j"))
    path = tmp_path / "j" / "rollouts.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert len(Journal(tmp_path / "j").finished()) == 4
    report = await run(make_plan(), make_rows(5), journal=Journal(tmp_path / "j"))
    assert report.completed == 5
    assert path.read_bytes().count(b"\n") == 5


async def test_never_more_in_flight_than_allowed_and_rows_are_read_as_needed(run, make_plan, make_rows):
    taken = 0
    most = 0

    def rows():
        nonlocal taken
        for row in make_rows(500):
            taken += 1
            yield row

    class Watch:
        done = 0

        def started(self, total, done): ...

        def rollout(self, rollout, running):
            nonlocal most
            self.done += 1
            most = max(most, taken - self.done)

        def stage(self, text): ...

        def finished(self, report): ...

    report = await run(make_plan(concurrency=4), rows(), observer=Watch(), selected=500)
    assert report.completed == 500
    assert most <= 4


async def test_stopping_lets_what_is_in_flight_finish(run, make_plan, make_rows, tmp_path):
    stop = asyncio.Event()
    with ModelEndpoint() as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), concurrency=2)

        class Stop:
            def started(self, total, done): ...

            def rollout(self, rollout, running):
                stop.set()

            def stage(self, text): ...

            def finished(self, report): ...

        report = await run(plan, make_rows(5000), journal=Journal(tmp_path / "j"), stop=stop, observer=Stop())
    assert report.stopped == "stopped on request"
    assert 0 < report.completed < 5000
    assert report.completed == len(Journal(tmp_path / "j").finished())
    assert report.failed == 0


async def test_cancelling_keeps_what_was_finished_and_owes_the_rest(run, make_plan, make_rows, tmp_path):
    with ModelEndpoint(lambda body, n: Reply(hang=True) if n >= 5 else None) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), concurrency=3)
        work = asyncio.create_task(run(plan, make_rows(10), journal=Journal(tmp_path / "j")))
        await until(lambda: len(endpoint.requests) == 8, what="three calls hang")
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    journal = Journal(tmp_path / "j")
    assert len(journal.finished()) == 5
    assert journal.run()["sessions"][0]["stopped"] == "cut off"


@pytest.mark.parametrize(
    ("budget", "word"), [(Budget(max_total_tokens=500), "tokens"), (Budget(max_cost_usd=0.001), "USD")]
)
async def test_a_budget_pauses_and_a_larger_one_goes_on(run, make_plan, make_rows, tmp_path, budget, word):
    with ModelEndpoint() as endpoint:
        model = ModelSpec.parse("m", base_url=endpoint.url)
        model.price = (100.0, 100.0)
        plan = make_plan(model=model, budget=budget, concurrency=2)
        report = await run(plan, make_rows(100), journal=Journal(tmp_path / "j"))
        assert "budget" in report.stopped
        assert word in report.stopped
        assert 0 < report.completed < 100
        again = await run(plan, make_rows(100), journal=Journal(tmp_path / "j"))
        assert again.completed == report.completed
        plan.budget = Budget()
        assert (await run(plan, make_rows(100), journal=Journal(tmp_path / "j"))).completed == 100


async def test_a_time_limit_for_the_whole_run(run, make_plan, make_rows, tmp_path):
    with ModelEndpoint(lambda body, n: Reply(hang=True) if n >= 1 else None) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), timeouts=Timeouts(run_s=3), concurrency=1)
        report = await run(plan, make_rows(10), journal=Journal(tmp_path / "j"))
    assert "time limit" in report.stopped
    assert report.completed == 1


async def test_only_some_keys(run, make_plan, make_rows, tmp_path):
    journal = Journal(tmp_path / "j")
    rows = [replace(row, key=f"row {row.index}") for row in make_rows(5)]
    only = {(0, "row 1", 0), (0, "row 3", 1)}
    await run(make_plan(attempts=2), rows, journal=journal, only=only)
    assert sorted(journal.finished()) == sorted(only)


async def test_equal_rows_are_told_apart_and_nobodys_row_is_changed(run, make_plan, make_rows, tmp_path):
    journal, rows = Journal(tmp_path / "j"), [*make_rows(1), *make_rows(1)]
    rows[1].index = 1
    await run(make_plan(), rows, journal=journal)
    first, second = sorted(journal.rollouts(), key=lambda rollout: rollout.row_index)
    assert first.row_key == first.hashes["row"] == second.hashes["row"]
    assert second.row_key == f"{first.row_key}#2"
    assert [row.key for row in rows] == [None, None]


async def test_an_agent_that_raises_costs_its_rollout_only(make_plan, make_rows):
    from osmosis.engine.evaluate import Evaluation

    class Broken:
        async def run(self, task, model):
            if task.row.index == 1:
                raise OsmosisError("the sandbox is gone")
            raise ZeroDivisionError("oh")

    report = await Evaluation(make_plan(), make_rows(3), Broken()).run()
    assert report.failed == 3
    assert {f.phase.value for f in report.failures} == {"agent"}


async def test_a_disk_that_cannot_be_written_ends_the_run_with_an_error(run, make_plan, make_rows, tmp_path):
    class Full(Journal):
        def append_all(self, rollouts):
            raise OSError(28, "No space left on device")

    with pytest.raises(OsmosisError, match="No space left"):
        await run(make_plan(), make_rows(50), journal=Full(tmp_path / "j"))


async def test_the_watchdog_names_the_stuck_row_and_stage(run, make_plan, make_rows):
    said = []

    class Listen:
        def started(self, total, done): ...

        def rollout(self, rollout, running): ...

        def stage(self, text):
            said.append(text)

        def finished(self, report): ...

    with ModelEndpoint(lambda body, n: Reply(hang=True)) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url))
        work = asyncio.create_task(run(plan, make_rows(1), observer=Listen(), stuck_s=0.2))
        await until(lambda: said, what="the watchdog speaks")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert "row 0 attempt 0 has been in 'model call'" in said[0]


@pytest.mark.parametrize("kind", ["loop", "workflow"])
async def test_an_agent_hears_its_answer_while_it_is_written(tmp_path, make_plan, make_rows, kind):
    """A served piece each: the second is sent only after the agent has heard the first."""
    heard, told = [], asyncio.Event()

    def listen(piece):
        heard.append(piece.delta.get("content"))
        told.set()

    class Loop(RolloutAgentLoop):
        name = "listens"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            messages = list(ctx.request.messages)
            done = await ctx.chat(messages, on_piece=listen, stream=True)
            return ctx.complete([*messages, done.message])

    class Work(AgentWorkflow):
        async def run(self, ctx):
            async with ctx.chat() as chat:
                done = await chat.complete(list(ctx.prompt), on_piece=listen, stream=True)
            return [*ctx.prompt, done.message]

    class Streams:
        def __init__(self, spec):
            self.spec = spec

        async def complete(self, request):
            assert "stream" not in request.params
            request.tell(Piece({"content": "####"}))
            await asyncio.wait_for(told.wait(), 10)
            request.tell(Piece({"content": " 4"}))
            return Completion({"role": "assistant", "content": "#### 4"}, "stop", Usage())

        async def close(self):
            pass

    plan = make_plan()
    agent = Loop() if kind == "loop" else Work
    report = await Evaluation(plan, make_rows(1), as_agent(agent).bind(plan), model=Streams(plan.model)).run()
    assert (report.succeeded, heard) == (1, ["####", " 4"])
