"""The rollout record: adds up, keeps failures apart from zeros, survives its own serialisation."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from osmosis.records.rollout import (
    CallTokens,
    Category,
    Failure,
    ModelCall,
    Phase,
    Rollout,
    RolloutStatus,
    Score,
    Usage,
)


def test_usage_adds_and_an_unknown_price_is_not_free() -> None:
    known = Usage(prompt_tokens=1, completion_tokens=2, cost_usd=0.5)
    unknown = Usage(prompt_tokens=10, completion_tokens=20)
    assert (known + unknown).cost_usd == 0.5
    assert (unknown + unknown).cost_usd is None
    assert (known + unknown).total_tokens == 33


def test_a_rollout_survives_a_journal_line() -> None:
    failure = Failure(phase=Phase.SCORE, category=Category.SCORE_ERROR, message="boom")
    rollout = Rollout(
        rollout_id="r",
        row_index=3,
        attempt=1,
        status=RolloutStatus.SUCCESS,
        messages=[{"role": "user", "content": "\u2028 [/red] \x00"}],
        scores={"reward": Score(name="reward", value=1.0), "broken": Score(name="broken", failure=failure)},
    )
    line = rollout.to_line()
    assert line.count(b"\n") == 1
    again = Rollout.model_validate_json(line)
    assert again == rollout
    assert again.value("broken") is None
    assert again.key == (0, "@3", 1)


def test_a_journal_line_is_what_the_record_says() -> None:
    call = ModelCall(started_ms=0.25, duration_ms=1e16, usage=Usage(cost_usd=0.1), tokens=CallTokens(logprobs=[-1.0]))
    rollout = Rollout(
        rollout_id="r",
        row_index=3,
        attempt=1,
        row_key="k",
        status=RolloutStatus.FAILED,
        messages=[{"role": "assistant", "content": None, "tool_calls": [{"id": 1, "f": None}]}, {"content": "é\u2028"}],
        scores={"f": Score(0.5, "why", {"n": None}, {"a": 1.0}, usage=Usage(prompt_tokens=2))},
        failure=Failure(phase=Phase.MODEL, category=Category.TIMEOUT, message="late"),
        calls=[call],
        info={"deep": [{"x": 1.5}]},
        hashes={"row": "h"},
    )
    assert rollout.to_line().decode() == rollout.model_dump_json(exclude_none=True) + "\n"


def test_a_record_made_of_right_values_is_the_checked_one() -> None:
    given = {"rollout_id": "r", "row_index": 3, "attempt": 1, "status": RolloutStatus.SUCCESS}
    made, again, checked = Rollout.made(**given), Rollout.made(**given), Rollout(**given)
    assert {**vars(made), "started_at": None} == {**vars(checked), "started_at": None}
    assert list(vars(made)) == list(vars(checked))
    assert made.model_fields_set == checked.model_fields_set
    assert made.messages is not again.messages
    assert made.usage is not again.usage
    made.scores["f"] = Score.made(name="f", value=1.0)
    assert made.model_copy(deep=True) == made
    assert Rollout.model_validate_json(made.to_line()) == made


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_is_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        Score(name="x", value=value)
