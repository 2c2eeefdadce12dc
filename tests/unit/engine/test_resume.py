"""Changed inputs: a plan first, then exactly that; regrading never asks the model and never loses a score."""

from dataclasses import replace
from pathlib import Path

import pytest

from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import row_hash
from osmosis.engine.agent import RecordedRollouts
from osmosis.engine.evaluate import Evaluation
from osmosis.engine.journal import Journal
from osmosis.engine.load_agent import load_scorers
from osmosis.engine.resume import apply, plan_regrade, plan_resume
from osmosis.errors import Conflict, ModelError
from osmosis.llm import ChatRequest, open_model
from osmosis.records.run.plan import ModelSpec
from support.endpoint import ModelEndpoint

HERE = Path(__file__).parent
HASHES = {"agent": "a", "sampling": "s", "score": "f"}


def selected(rows, *, by_id=False):
    """As a scan of these rows finds them."""
    found = SelectedRows.of((row.index, row_hash(row.data)) for row in rows)
    return found.by_id({str(row.data["id"]): row.index for row in rows}) if by_id else found


def keys_of(rows, *places):
    at = selected(rows).at
    return sorted((0, at[index], attempt) for index, attempt in places)


@pytest.fixture
async def ran(run, make_plan, make_rows, tmp_path):
    """A finished run of 6 rows x 2 and what made it."""
    plan, rows = make_plan(attempts=2), make_rows(6)
    journal = Journal(tmp_path / "j")
    await run(plan, rows, journal=journal, hashes=HASHES)
    return plan, rows, journal


async def test_nothing_changed(ran):
    plan, rows, journal = ran
    found = plan_resume(journal, selected(rows), plan, HASHES)
    assert (found.reuse, found.owed, found.drifted) == (12, 0, False)
    assert found.stored.summary.completed == 12
    assert found.line() == "12 kept, 0 to score again, 0 to run again"


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
    found = plan_resume(journal, selected(rows), plan, {**HASHES, **changed})
    assert (found.reuse, len(found.regrade), len(found.rerun)) == counts
    assert found.drifted
    assert set(found.changed) == set(changed)
    assert found.stored is None


async def test_one_changed_row_one_gone_and_fewer_attempts(ran):
    plan, rows, journal = ran
    rows[2].data["user_prompt"] = "What is 2 * 8?"
    now = plan.model_copy(update={"attempts": 1})
    found = plan_resume(journal, selected(rows[:5]), now, HASHES)
    assert (found.reuse, sorted(found.rerun), found.owed) == (4, keys_of(rows, (2, 0)), 0)
    assert found.changed == {"row": 1}
    assert len(found.gone) == 7
    await apply(found, journal, now, rows[:5], [], HASHES)
    assert sorted(journal.finished()) == keys_of(rows, (0, 0), (1, 0), (3, 0), (4, 0))
    journal.close()


async def test_a_row_put_in_at_the_top_keeps_the_results_of_the_others(ran, run, make_rows):
    plan, rows, journal = ran
    before = {rollout.key: rollout.messages for rollout in journal.rollouts()}
    rows = [replace(row, index=place) for place, row in enumerate([make_rows(9)[8], *rows])]
    found = plan_resume(journal, selected(rows), plan, HASHES)
    assert (found.reuse, found.owed, found.drifted) == (12, 2, False)
    assert found.line() == "12 kept, 0 to score again, 0 to run again, 2 to run"
    await apply(found, journal, plan, rows, [], HASHES)
    journal.close()
    await run(plan, rows, journal=journal, hashes=HASHES)
    stored = list(journal.rollouts())
    assert sorted((r.row_index, r.attempt) for r in stored) == [(r, a) for r in range(7) for a in range(2)]
    assert all(r.messages == before[r.key] for r in stored if r.key in before)
    assert [r.key in before for r in stored] == [True] * 12 + [False] * 2


async def test_rows_that_changed_places_and_one_that_left(ran):
    plan, rows, journal = ran
    rows = [replace(row, index=index) for index, row in enumerate([rows[5], rows[0], rows[3]])]
    found = plan_resume(journal, selected(rows), plan, HASHES)
    assert (found.reuse, len(found.gone), found.owed) == (6, 6, 0)
    await apply(found, journal, plan, rows, [], HASHES)
    journal.close()
    stored = {rollout.row_index: rollout for rollout in journal.rollouts()}
    assert {place: stored[place].messages[0]["content"] for place in stored} == {
        row.index: row.data["user_prompt"] for row in rows
    }


async def test_a_row_with_an_id_stays_itself_when_it_is_edited(run, make_plan, make_rows, tmp_path):
    plan, journal = make_plan(), Journal(tmp_path / "j")
    rows = [replace(row, data={**row.data, "id": f"q{row.index}"}) for row in make_rows(4)]
    keyed = [replace(row, key=row.data["id"]) for row in rows]
    await run(plan, keyed, journal=journal, hashes=HASHES)
    rows[1].data["user_prompt"] = "What is 1 * 9?"
    rows[1].index, rows[3].index = 3, 1
    found = plan_resume(journal, selected(rows, by_id=True), plan, HASHES)
    assert (found.reuse, sorted(found.rerun), found.changed) == (3, [(0, "q1", 0)], {"row": 1})


async def test_a_journal_goes_on_when_its_rows_get_unique_ids_or_lose_them(run, make_plan, make_rows, tmp_path):
    """The rows have an id from the start; whether it is unique decides by what they are known."""
    plan, journal = make_plan(), Journal(tmp_path / "j")
    rows = [replace(row, data={**row.data, "id": row.index}) for row in make_rows(4)]
    await run(plan, rows, journal=journal, hashes=HASHES)
    found = plan_resume(journal, selected(rows, by_id=True), plan, HASHES)
    assert (found.reuse, found.owed, found.drifted, found.pending) == (4, 0, False, True)
    await apply(found, journal, plan, rows, [], HASHES)
    journal.close()
    assert sorted(journal.finished()) == [(0, str(n), 0) for n in range(4)]
    back = plan_resume(journal, selected(rows), plan, HASHES)
    assert (back.reuse, back.owed, back.drifted) == (4, 0, False)


async def test_a_changed_score_function_scores_again_without_the_model(run, make_plan, make_rows, tmp_path):
    rows, journal = make_rows(4), Journal(tmp_path / "j")
    with ModelEndpoint() as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url))
        await run(plan, rows, journal=journal, hashes=HASHES)
        asked = len(endpoint.requests)
        found = plan_resume(journal, selected(rows), plan, {**HASHES, "score": "g"})
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
    assert not plan_resume(journal, selected(rows), plan, {**HASHES, "score": "g"}).drifted


async def test_only_the_failures_that_are_named_are_run_again(run, make_plan, make_rows, tmp_path):
    rows = [*make_rows(2), *make_rows(4, mode="raise")[2:], *make_rows(6, mode="give_up")[4:]]
    plan, journal = make_plan(agent="helpers_agents:misbehaving"), Journal(tmp_path / "j")
    await run(plan, rows, journal=journal, hashes=HASHES)
    assert len(plan_resume(journal, selected(rows), plan, HASHES, retry_failed=["timeout"]).retry) == 0
    assert len(plan_resume(journal, selected(rows), plan, HASHES, retry_failed=["agent_error"]).retry) == 4
    found = plan_resume(journal, selected(rows), plan, HASHES, retry_failed=[])
    assert sorted(found.retry) == keys_of(rows, (2, 0), (3, 0), (4, 0), (5, 0))
    await apply(found, journal, plan, rows, [], HASHES)
    journal.close()
    assert sorted(journal.finished()) == keys_of(rows, (0, 0), (1, 0))
    assert (tmp_path / "j" / "superseded.jsonl").read_bytes().count(b"\n") == 4


async def test_a_recording_answers_as_long_as_the_agent_asks_the_same(ran):
    _, rows, journal = ran
    model = open_model(ModelSpec(name=str(journal.folder), kind="replay"))
    recorded = RecordedRollouts(journal.folder).read(*keys_of(rows, (3, 1)))
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
    found = plan_regrade(journal, rows, selected(rows))
    assert (len(found.regrade), found.edited, found.owed) == (12, 2, 0)
    assert found.hashes == {"agent": "a", "sampling": "s"}
    scorers = load_scorers(["helpers_agents:exact"], HERE)
    await apply(found, journal, plan, rows, scorers, {**found.hashes, "score": "f"})
    journal.open(plan)
    report = await Evaluation(plan, rows, None, scorers=scorers, journal=journal, selected=6).run()
    journal.close()
    assert (report.completed, report.total) == (12, 12)
    assert {r.row_index for r in journal.rollouts() if r.value("helpers_agents:exact") == 0.0} >= {3}
    assert plan_resume(journal, selected(rows), plan, HASHES).reuse == 12


async def test_without_a_rollout_function_what_is_owed_stays_owed(ran, make_rows):
    plan, _, journal = ran
    report = await Evaluation(plan, make_rows(8), None, journal=journal).run()
    assert (report.completed, report.total) == (12, 16)


async def test_a_row_with_another_prompt_cannot_be_scored_again(ran):
    _, rows, journal = ran
    rows[2].data["user_prompt"] = "What is 2 * 9?"
    with pytest.raises(Conflict, match="2 rollouts of run j belong to rows that have changed"):
        plan_regrade(journal, rows, selected(rows))
