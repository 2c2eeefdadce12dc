"""Changed inputs: a plan first, then exactly that; regrading never asks the model and never loses a score."""

from pathlib import Path

import pytest

from osmosis.datasets.scan import row_hash
from osmosis.engine.evaluate import Options, evaluate
from osmosis.engine.journal import Journal
from osmosis.engine.recorded import RecordedRollouts, conversations
from osmosis.engine.resume import apply, plan_regrade, plan_resume
from osmosis.engine.scoring import load_scorers
from osmosis.errors import Conflict, ModelError
from osmosis.llm import ChatRequest, open_model
from osmosis.records.plan import ModelSpec
from osmosis.testing.endpoint import ModelEndpoint

HERE = Path(__file__).parent
HASHES = {"agent": "a", "sampling": "s", "score": "f"}


def hashes_of(rows):
    return {row.index: row_hash(row.data) for row in rows}


@pytest.fixture
async def ran(run, make_plan, make_rows, tmp_path):
    """A finished run of 6 rows x 2 and what made it."""
    plan, rows = make_plan(attempts=2), make_rows(6)
    journal = Journal(tmp_path / "j")
    await run(plan, rows, journal=journal, options=Options(hashes=HASHES))
    return plan, rows, journal


async def test_nothing_changed(ran):
    plan, rows, journal = ran
    found = plan_resume(journal, hashes_of(rows), plan, HASHES)
    assert (found.reuse, found.owed, found.drifted) == (12, 0, False)
    assert found.taken.summary.completed == 12
    assert found.line() == "12 reuse, 0 regrade, 0 rerun"


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"score": "g"}, (0, 12, 0)),
        ({"agent": "b"}, (0, 0, 12)),
        ({"sampling": "t"}, (0, 0, 12)),
        ({"score": "g", "agent": "b"}, (0, 0, 12)),
    ],
)
async def test_what_changed_decides_what_is_done(ran, changed, counts):
    plan, rows, journal = ran
    found = plan_resume(journal, hashes_of(rows), plan, {**HASHES, **changed})
    assert (found.reuse, len(found.regrade), len(found.rerun)) == counts
    assert found.drifted
    assert set(found.changed) == set(changed)
    assert found.taken is None


async def test_one_changed_row_one_gone_and_fewer_attempts(ran):
    plan, rows, journal = ran
    rows[2].data["user_prompt"] = "What is 2 * 8?"
    now = plan.model_copy(update={"attempts": 1})
    found = plan_resume(journal, hashes_of(rows[:5]), now, HASHES)
    assert (found.reuse, sorted(found.rerun), found.owed) == (4, [(2, 0)], 0)
    assert len(found.gone) == 7
    await apply(found, journal, now, rows[:5], [], HASHES)
    assert sorted(journal.finished()) == [(0, 0), (1, 0), (3, 0), (4, 0)]
    journal.close()


async def test_a_changed_score_function_scores_again_without_the_model(run, make_plan, make_rows, tmp_path):
    rows, journal = make_rows(4), Journal(tmp_path / "j")
    with ModelEndpoint() as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url))
        await run(plan, rows, journal=journal, options=Options(hashes=HASHES))
        asked = len(endpoint.requests)
        found = plan_resume(journal, hashes_of(rows), plan, {**HASHES, "score": "g"})
        scorers = load_scorers(["helpers_agents:full"], HERE)
        await apply(found, journal, plan, rows, scorers, {**HASHES, "score": "g"})
        journal.close()
        assert len(endpoint.requests) == asked
    stored = list(journal.rollouts())
    assert len(stored) == 4
    assert all(list(r.scores) == ["helpers_agents:full"] for r in stored)
    assert all(r.scores["helpers_agents:full"].value == pytest.approx(0.2) for r in stored)
    assert {r.hashes["score"] for r in stored} == {"g"}
    assert not (tmp_path / "j" / "regrade").exists()
    assert not plan_resume(journal, hashes_of(rows), plan, {**HASHES, "score": "g"}).drifted


async def test_only_the_failures_that_are_named_are_run_again(run, make_plan, make_rows, tmp_path):
    rows = [*make_rows(2), *make_rows(4, mode="raise")[2:], *make_rows(6, mode="give_up")[4:]]
    plan, journal = make_plan(agent="helpers_agents:misbehaving"), Journal(tmp_path / "j")
    await run(plan, rows, journal=journal, options=Options(hashes=HASHES))
    assert len(plan_resume(journal, hashes_of(rows), plan, HASHES, retry_failed=["timeout"]).retry) == 0
    assert len(plan_resume(journal, hashes_of(rows), plan, HASHES, retry_failed=["agent_error"]).retry) == 4
    found = plan_resume(journal, hashes_of(rows), plan, HASHES, retry_failed=[])
    assert sorted(found.retry) == [(2, 0), (3, 0), (4, 0), (5, 0)]
    await apply(found, journal, plan, rows, [], HASHES)
    journal.close()
    assert sorted(journal.finished()) == [(0, 0), (1, 0)]
    assert (tmp_path / "j" / "superseded.jsonl").read_bytes().count(b"\n") == 4


async def test_both_conversations_of_a_rollout_are_read_from_two_recordings(ran):
    _, rows, journal = ran
    ((before, after),) = conversations(journal.folder, journal.folder, [(3, 1)])
    assert before == after
    assert before[0]["content"] == rows[3].messages()[0]["content"]


async def test_a_recording_answers_as_long_as_the_agent_asks_the_same(ran):
    _, rows, journal = ran
    model = open_model(ModelSpec(name=str(journal.folder), kind="replay"))
    recorded = RecordedRollouts(journal.folder).read((3, 1))
    done = await model.complete(ChatRequest(rows[3].messages(), rollout_id="x", row_index=3, attempt=1))
    assert done.message == recorded.messages[-1]
    assert done.usage.total_tokens == recorded.usage.total_tokens
    with pytest.raises(ModelError, match="message 0 differs"):
        await model.complete(ChatRequest([{"role": "user", "content": "else"}], row_index=3, attempt=1))
    with pytest.raises(ModelError, match="row 9 attempt 0 is not in"):
        await model.complete(ChatRequest(rows[3].messages(), row_index=9))


async def test_a_regrade_is_the_loop_without_anything_to_run(ran):
    plan, rows, journal = ran
    rows[3].data["ground_truth"] = "wrong"
    found = plan_regrade(journal, rows, hashes_of(rows))
    assert (len(found.regrade), found.edited, found.owed) == (12, 2, 0)
    assert found.hashes == {"agent": "a", "sampling": "s"}
    scorers = load_scorers(["helpers_agents:exact"], HERE)
    await apply(found, journal, plan, rows, scorers, {**found.hashes, "score": "f"})
    journal.open(plan)
    report = await evaluate(plan, rows, None, scorers=scorers, journal=journal, options=Options(rows=6))
    journal.close()
    assert (report.completed, report.total) == (12, 12)
    assert {r.row_index for r in journal.rollouts() if r.value("helpers_agents:exact") == 0.0} >= {3}
    assert plan_resume(journal, hashes_of(rows), plan, HASHES).reuse == 12


async def test_without_a_rollout_function_what_is_owed_stays_owed(ran, make_rows):
    plan, _, journal = ran
    report = await evaluate(plan, make_rows(8), None, journal=journal)
    assert (report.completed, report.total) == (12, 16)


async def test_a_row_with_another_prompt_cannot_be_scored_again(ran):
    _, rows, journal = ran
    rows[2].data["user_prompt"] = "What is 2 * 9?"
    with pytest.raises(Conflict, match="2 rollouts of run j are of rows with another prompt"):
        plan_regrade(journal, rows, hashes_of(rows))
