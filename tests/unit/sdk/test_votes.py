"""Several graders as one score function."""

import pytest

from osmosis import Score, score_function, vote
from osmosis.engine.scoring import FunctionScorer
from osmosis.errors import LoadError
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Row

ROLLOUT = Rollout(
    rollout_id="r", row_index=0, attempt=0, status="success", messages=[{"role": "assistant", "content": "42"}]
)
ROW = Row(index=0, data={"ground_truth": "42"})


def exact(solution_str, ground_truth, extra_info=None):
    return solution_str == ground_truth


async def lenient(messages, ground_truth, metadata):
    return Score(1.0, "close enough")


def strict(solution_str, ground_truth, extra_info=None):
    return 0.0


def broken(solution_str, ground_truth, extra_info=None):
    raise RuntimeError("no network")


async def score_of(*graders, **more):
    (score,) = await FunctionScorer("m:both", vote(*graders, **more)).score(ROLLOUT, ROW)
    return score


async def test_the_majority_wins_and_each_vote_is_kept():
    score = await score_of(exact, lenient, strict)
    assert (score.value, score.parts) == (1.0, {"exact": 1.0, "lenient": 1.0, "strict": 0.0})
    assert score.reason.splitlines() == ["exact: 1", "lenient: 1, close enough", "strict: 0"]


@pytest.mark.parametrize(("by", "value"), [("majority", 0.0), ("mean", 0.5), ("median", 0.5), ("min", 0), ("max", 1)])
async def test_other_rules_and_a_tie(by, value):
    assert (await score_of(exact, strict, by=by)).value == value


async def test_a_grader_that_fails_has_no_vote_and_half_of_them_fail_the_score():
    score = await score_of(exact, lenient, broken)
    assert (score.value, score.parts) == (1.0, {"exact": 1.0, "lenient": 1.0})
    assert "broken: no vote, RuntimeError: no network" in score.reason
    failed = await score_of(exact, broken)
    assert failed.value is None
    assert "1 of 2 graders have no vote" in failed.failure.message


async def test_graders_of_one_name_are_told_apart_and_one_scale_is_kept():
    score = await score_of(exact, exact, exact)
    assert set(score.parts) == {"exact", "exact-2", "exact-3"}
    five = [score_function(min=0, max=5)(lambda solution_str, ground_truth, extra_info: 4.0) for _ in range(2)]
    assert FunctionScorer("v", vote(*five)).bounds == (0.0, 5.0)
    assert FunctionScorer("v", vote(five[0], exact)).bounds is None


def test_what_is_no_vote():
    with pytest.raises(ValueError, match="at least one grader"):
        vote()
    with pytest.raises(ValueError, match="by must be one of majority"):
        vote(exact, by="loudest")
    with pytest.raises(LoadError, match="the first parameter decides"):
        vote(lambda answer: 1.0)
