"""The rollout record: adds up, keeps failures apart from zeros, survives its own serialisation."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from osmosis.records.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score, Usage


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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_is_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        Score(name="x", value=value)
