"""Whatever one rollout leaves, raises or does: its own failure, with its place; the others are stored, and it ends."""

import asyncio
import time

import orjson
import pytest

from osmosis.engine.journal import Journal
from osmosis.engine.task import Deadline
from osmosis.errors import OsmosisError
from osmosis.local.run import summary_of
from osmosis.records.run.plan import ModelSpec, Retry, Timeouts
from osmosis.records.run.rollout import Category
from osmosis.records.run.rows import Row
from osmosis.sdk.user_code import run_main
from support.endpoint import ModelEndpoint, Reply

AGENT = "helpers_agents:leaves"


def rows_with(*modes):
    return [
        Row(index=i, data={"user_prompt": "?", "ground_truth": "ok", "mode": mode, "seen": []})
        for i, mode in enumerate(modes)
    ]


async def stored(run, make_plan, folder, modes, *, scores=("exact",), **plan):
    """`{row: rollout}` as they were stored, and the report."""
    journal = Journal(folder / "j")
    report = await asyncio.wait_for(
        run(make_plan(agent=AGENT, **plan), rows_with(*modes), scores=scores, journal=journal), 60
    )
    return {r.row_index: r for r in Journal(folder / "j").rollouts()}, report


class Heard:
    """An observer that remembers the lines."""

    def __init__(self):
        self.lines = []

    def started(self, total, done): ...
    def rollout(self, rollout, running): ...
    def finished(self, report): ...

    def stage(self, text):
        self.lines.append(text)


@pytest.mark.parametrize(
    ("mode", "place"),
    [("circle", "messages[1].content[1]: it contains itself"), ("deep", "messages[1].content.a: it is nested")],
)
async def test_what_cannot_be_stored_is_that_rollouts_failure(run, make_plan, tmp_path, mode, place):
    kept, report = await stored(run, make_plan, tmp_path, ["ok", mode, "ok"])
    assert (report.completed, report.failed) == (3, 1)
    assert place.partition(":")[0].rpartition(".")[0] in kept[1].failure.message
    assert place.partition(": ")[2] in kept[1].failure.message
    assert kept[1].failure.category is Category.AGENT_ERROR


@pytest.mark.parametrize(("mode", "said"), [("half_a_pair", "caf�.txt"), ("odd_keys", "object object")])
async def test_text_is_made_whole_and_the_rest_becomes_text(run, make_plan, tmp_path, mode, said):
    kept, report = await stored(run, make_plan, tmp_path, ["ok", mode])
    assert report.failed == 0
    assert said in str(kept[1].messages[-1]["content"])


@pytest.mark.parametrize("mode", ["error_text", "own_words", "interrupt", "exit"])
async def test_what_an_agent_raises_costs_its_rollout_only(run, make_plan, tmp_path, mode):
    kept, report = await stored(run, make_plan, tmp_path, [mode, "ok", "ok"])
    assert (report.completed, report.failed) == (3, 1)
    assert kept[0].failure.category is Category.AGENT_ERROR


async def test_the_journal_takes_whatever_a_rollout_holds(tmp_path, make_plan, make_rows, run):
    journal = Journal(tmp_path / "j")
    await run(make_plan(), make_rows(1), journal=journal)
    (rollout,) = journal.rollouts()
    circle = {}
    circle["me"] = circle
    journal.open(make_plan())
    for attempt, info in ((1, circle), (2, {"name": "\udce9", (1, 2): 3})):
        (kept,) = journal.append_all([rollout.model_copy(update={"attempt": attempt, "info": info})])
        assert (kept.failure is not None) is (attempt == 1)
    journal.close()
    again = list(Journal(tmp_path / "j").rollouts())
    assert [r.attempt for r in again] == [0, 1, 2]
    assert "info.me: it contains itself" in again[1].failure.message
    assert again[1].scores == {}


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_journal_that_dies_ends_the_run_with_what_is_on_disk(run, make_plan, tmp_path, is_stored):
    class Dies(Journal):
        def append_all(self, rollouts):
            dies = any(rollout.row_index == 1 for rollout in rollouts)
            stored = super().append_all(rollouts) if is_stored or not dies else []
            if dies:
                raise TypeError("not for me")
            return stored

    journal = Dies(tmp_path / "j")
    rows = rows_with("ok", "work", "hang")  # the last one would wait for its limit of 450 s
    with pytest.raises(OsmosisError, match="TypeError: not for me"):
        await asyncio.wait_for(run(make_plan(agent=AGENT), rows, journal=journal), 20)
    stored = [rollout.row_index for rollout in Journal(tmp_path / "j").rollouts()]
    assert stored == ([0, 1] if is_stored else [0])


async def test_attempts_and_scorers_have_their_own_copies(run, make_plan, tmp_path):
    journal = Journal(tmp_path / "j")
    rows = rows_with("ok")
    before = orjson.dumps(rows[0].data)
    report = await run(
        make_plan(agent=AGENT, attempts=2, concurrency=1), rows, scores=("clears", "sees", "exact"), journal=journal
    )
    assert orjson.dumps(rows[0].data) == before
    kept = list(journal.rollouts())
    assert [len(r.messages) for r in kept] == [2, 2]
    assert {r.scores["helpers_agents:sees"].value for r in kept} == {2.0}
    assert len({r.hashes["row"] for r in kept}) == 1
    assert report.scores[2].mean == 1.0


async def test_code_that_goes_on_after_its_cancellation_is_left_behind_and_named(make_plan, run, tmp_path):
    heard = Heard()
    plan = make_plan(agent=AGENT, timeouts=Timeouts(agent_s=0.2, score_s=0.2))
    journal = Journal(tmp_path / "j")
    work = run(plan, rows_with("swallow", "ok"), scores=("never_ends",), journal=journal, observer=heard)
    await asyncio.wait_for(work, 40)
    kept = {r.row_index: r for r in journal.rollouts()}
    assert kept[0].failure.category is Category.TIMEOUT
    assert "left behind" in kept[0].failure.message
    assert "left behind" in kept[1].scores["helpers_agents:never_ends"].failure.message
    said = "\n".join(heard.lines)
    assert "row 0 attempt 0: the agent ignored its cancellation" in said
    assert "row 1 attempt 0: helpers_agents:never_ends ignored" in said
    assert "(2 in this run)" in said


async def test_what_a_first_try_left_behind_is_not_counted_with_the_second(make_plan, run):
    heard = Heard()
    plan = make_plan(agent=AGENT, timeouts=Timeouts(agent_s=0.2), retry=Retry(rollouts=1))
    await asyncio.wait_for(run(plan, rows_with("swallow"), observer=heard), 40)
    assert [line.partition("was left behind")[2] for line in heard.lines if "left behind" in line] == [
        "",
        " (2 in this run)",
    ]


async def test_left_code_is_not_resumed():
    steps = []

    async def swallows():
        while True:
            try:
                await asyncio.sleep(0.01)
                steps.append(1)
            except asyncio.CancelledError:
                pass

    limit = Deadline(0.05, grace_s=0.05)
    with pytest.raises(asyncio.TimeoutError):
        await limit.run(swallows())
    assert limit.fired
    count = len(steps)
    await asyncio.sleep(0.05)
    assert len(steps) == count
    await asyncio.wait_for(asyncio.sleep(0), 1)  # the task itself goes on, without a cancellation left in it


async def test_a_rollout_that_holds_the_loop_costs_no_other_one_its_time(run, make_plan, tmp_path):
    heard = Heard()
    journal = Journal(tmp_path / "j")
    plan = make_plan(agent=AGENT, timeouts=Timeouts(agent_s=1.2))
    await run(plan, rows_with("hold", "work", "work"), journal=journal, observer=heard)
    failed = {r.row_index for r in journal.rollouts() if r.failure}
    assert failed <= {0}


@pytest.mark.parametrize("mode", ["huge", "low"])
async def test_scores_beyond_numbers_are_invalid_and_the_report_reads_them(run, make_plan, tmp_path, mode):
    kept, report = await stored(run, make_plan, tmp_path, [mode, "stop"], scores=("extreme",))
    assert kept[0].scores["helpers_agents:extreme"].failure.category is Category.INVALID_SCORE
    assert (report.primary.scored, report.primary.failed) == (1, 1)
    journal = Journal(tmp_path / "j")
    assert summary_of(journal, journal.plan()).primary.mean == 0.0


async def test_impossible_usage_is_a_bad_response(run, make_plan, make_rows, tmp_path):
    reply = b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1e308}}'
    with ModelEndpoint(lambda body, number: Reply(reply.decode())) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url))
        report = await run(plan, make_rows(2), journal=Journal(tmp_path / "j"))
    assert {(f.category.value, f.count) for f in report.failures} == {("bad_response", 2)}
    assert "usage.prompt_tokens is 1e+308" in report.failures[0].example


def test_what_is_left_running_holds_the_end_for_a_grace_only():
    async def main():
        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass

        left = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.to_thread(time.sleep, 120))]
        await asyncio.sleep(0.05)
        return f"done beside {len(left)}"

    started = time.monotonic()
    assert asyncio.run(run_main(main())) == "done beside 2"
    assert time.monotonic() - started < 30
