"""Changed inputs: a plan first, then exactly that; regrading never asks the model and never loses a score."""

from pathlib import Path

import pytest

from osmosis.engine.compare import compare, transcripts
from osmosis.engine.dataset import row_hash
from osmosis.engine.evaluate import Options
from osmosis.engine.forecast import forecast
from osmosis.engine.journal import Journal
from osmosis.engine.recorded import RecordedRollouts
from osmosis.engine.resume import apply, plan_resume
from osmosis.engine.scoring import load_scorers
from osmosis.errors import ModelError, ValidationError
from osmosis.llm import ChatRequest, open_model
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Rollout, RolloutStatus, Score, Usage
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


def write(folder, plan, values, name="f", edited=()):
    journal = Journal(folder)
    journal.open(plan)
    for (row, attempt), value in values.items():
        journal.append(
            Rollout(
                rollout_id=f"{row}-{attempt}",
                row_index=row,
                attempt=attempt,
                status=RolloutStatus.SUCCESS,
                messages=[{"role": "assistant", "content": f"{folder.name} {row}"}],
                scores={name: Score(name=name, value=value)},
                hashes={"row": f"{row}-edited" if row in edited else f"{row}"},
            )
        )
    journal.close()
    return journal


def test_comparing_pairs_by_row_and_attempt(tmp_path, make_plan):
    plan = make_plan(attempts=2)
    before = {(r, a): float(r % 2) for r in range(20) for a in range(2)}
    after = {**before, (0, 0): 1.0, (1, 0): 0.0, (3, 0): 0.0, (5, 1): 0.0, (7, 0): None, (30, 0): 1.0}
    a, b = write(tmp_path / "a", plan, before), write(tmp_path / "b", plan, after)
    found = compare(a, b)
    assert (found.pairs, found.rows, found.only_a, found.only_b) == (39, 20, 1, 1)
    assert (found.gained, found.lost) == (1, 3)
    assert found.p_value == pytest.approx(0.625)
    assert found.difference == pytest.approx(-0.05)
    assert found.interval.low < found.difference < found.interval.high
    assert [(f.row_index, f.attempt, f.gained) for f in found.flips] == [
        (0, 0, True),
        (1, 0, False),
        (3, 0, False),
        (5, 1, False),
    ]
    (_, left, right), *_ = transcripts(a, b, found.flips)
    assert (left[0]["content"], right[0]["content"]) == ("a 0", "b 0")
    assert found.verdict == "no clear difference"
    assert not found.regressed()
    assert found.regressed(0.01)
    assert not found.regressed(0.5)


def test_a_clear_loss_is_a_regression(tmp_path, make_plan):
    a = write(tmp_path / "a", make_plan(), {(r, 0): 1.0 for r in range(30)})
    b = write(tmp_path / "b", make_plan(), {(r, 0): float(r % 3 == 0) for r in range(30)})
    found = compare(a, b)
    assert found.verdict == "worse"
    assert found.regressed()
    assert not compare(b, a).regressed()


def test_a_run_that_fails_where_it_is_hard_is_no_better(tmp_path, make_plan):
    """By what both scored, B is better: it crashed on every row that A had wrong, and on some that A had right."""
    a = write(tmp_path / "a", make_plan(), {(r, 0): float(r % 4 != 0) for r in range(40)})
    b = write(tmp_path / "b", make_plan(), {(r, 0): 1.0 if r % 4 == 1 else None for r in range(40)})
    found = compare(a, b)
    assert (found.pairs, found.failed_a, found.failed_b) == (10, 0, 30)
    assert (found.difference, found.verdict) == (0.0, "no clear difference")
    assert found.difference_failures_0 == pytest.approx(-0.5)
    assert found.regressed()
    assert found.fails_more()
    assert not compare(b, a).regressed()
    assert found.to_dict()["difference_failures_0_ci"][1] < 0


def test_the_difference_is_that_of_the_means_shown(tmp_path, make_plan):
    plan = make_plan(attempts=3)
    a = write(tmp_path / "a", plan, {(0, 0): 0.0, (0, 1): 0.0, (0, 2): 0.0, (1, 0): 1.0, (2, 0): 0.5})
    b = write(tmp_path / "b", plan, {(0, 0): 1.0, (0, 1): 1.0, (0, 2): 1.0, (1, 0): 0.0, (2, 0): 0.5})
    found = compare(a, b)
    assert found.difference == pytest.approx(found.mean_b - found.mean_a) == pytest.approx(0.0)


def test_rows_that_are_others_are_no_pairs_in_silence(tmp_path, make_plan):
    values = {(r, 0): 1.0 for r in range(6)}
    a = write(tmp_path / "a", make_plan(), values)
    assert compare(a, write(tmp_path / "same", make_plan(), values)).rows_differ == 0
    assert compare(a, write(tmp_path / "b", make_plan(), values, edited=(1, 4))).to_dict()["rows_differ"] == 2
    with pytest.raises(ValidationError, match="share no row"):
        compare(a, write(tmp_path / "c", make_plan(), values, edited=range(6)))


def test_runs_without_a_common_score_cannot_be_compared(tmp_path, make_plan):
    a = write(tmp_path / "a", make_plan(), {(0, 0): 1.0})
    b = write(tmp_path / "b", make_plan(), {(0, 0): 1.0}, name="g")
    with pytest.raises(ValidationError, match="different scores"):
        compare(a, b)


def test_a_forecast_scales_and_has_an_interval():
    def one(tokens):
        usage = Usage(prompt_tokens=tokens, cost_usd=tokens / 1000)
        return Rollout(
            rollout_id="r", row_index=0, attempt=0, status=RolloutStatus.SUCCESS, usage=usage, duration_ms=500
        )

    found = forecast([one(t) for t in (80, 100, 120)], left=100, concurrency=10)
    assert found.tokens == pytest.approx(10_000)
    assert found.cost_usd == pytest.approx(10.0)
    assert found.cost_interval.low < 10 < found.cost_interval.high
    assert found.seconds == pytest.approx(5.0)
    assert "100 rollouts left" in found.line()
