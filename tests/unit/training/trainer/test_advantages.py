"""Advantages of a group: what is known of them by hand, and what has no reward stays out."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis.training.link import Sequence, TrainerPlan
from osmosis.training.trainer.advantages import advantages, learnable, token_weights


def plan(**changes: Any) -> TrainerPlan:
    values: dict[str, Any] = {
        "run": "r", "model_path": "m", "output_dir": "o", "rows": [0, 1], "steps": 1, "rows_per_step": 2,
        "samples_per_row": 2, "max_prompt_length": 9, "max_response_length": 10, "lr": 1e-3,
    }  # fmt: skip
    return TrainerPlan(**{**values, **changes})


def test_they_are_distances_from_the_group_in_its_deviations() -> None:
    found = advantages(plan(), [1.0, 0.0, 3.0, 3.0])
    assert found == pytest.approx([0.7070, -0.7070, 0, 0], abs=1e-3)
    assert advantages(plan(scale_rewards="none"), [1.0, 0.0, 3.0, 2.0]) == [0.5, -0.5, 0.5, -0.5]
    assert advantages(plan(loss="dr_grpo"), [1.0, 0.0, 3.0, 2.0]) == [0.5, -0.5, 0.5, -0.5]
    by_batch = advantages(plan(scale_rewards="batch"), [1.0, 0.0, 3.0, 2.0])
    assert by_batch == pytest.approx([0.5 / 1.2911, -0.5 / 1.2911, 0.5 / 1.2911, -0.5 / 1.2911], abs=1e-3)


def test_what_has_no_reward_is_in_no_mean() -> None:
    three = plan(samples_per_row=3, rows_per_step=1, scale_rewards="none")
    assert advantages(three, [1.0, None, 0.0]) == [0.5, 0.0, -0.5]
    assert advantages(three, [None, None, None]) == [0.0, 0.0, 0.0]
    assert advantages(three, [1.0, None, None]) == [0.0, 0.0, 0.0]


def test_the_weight_of_a_token_is_that_of_its_loss() -> None:
    assert token_weights(plan(loss="dapo"), [3, 1]) == [0.25, 0.25]
    assert token_weights(plan(loss="grpo"), [4, 1]) == [0.125, 0.5]
    assert token_weights(plan(loss="dr_grpo"), [4, 1]) == [0.05, 0.05]


def test_only_what_moves_the_weights_is_sent_and_the_environment_weighs_nothing() -> None:
    def sequence(row: int, attempt: int, reward: float | None) -> Sequence:
        return Sequence(
            row=row, attempt=attempt, token_ids=[1, 2, 3, 4], prompt_length=1, mask=[1, 0, 1],
            logprobs=[-1.0, 0.0, -1.0], reward=reward,
        )  # fmt: skip

    one, other, equal = sequence(0, 0, 1.0), sequence(0, 1, 0.0), sequence(1, 0, 1.0)
    sent = learnable([one, other, equal, None], plan(scale_rewards="none"))
    assert [sequence for sequence, _ in sent] == [one, other]
    assert sent[0][1] == [pytest.approx(0.5 / 6), 0.0, pytest.approx(0.5 / 6)]
    assert sent[1][1] == [pytest.approx(-0.5 / 6), 0.0, pytest.approx(-0.5 / 6)]
