"""Advantages of a group: what is known of them by hand, and what has no reward stays out."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis.training.protocol.messages import Sequence
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.advantages import advantages, token_weights, weigh_rollouts


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


def test_rejection_keeps_what_is_above_its_groups_mean() -> None:
    def rollout(attempt: int, reward: float | None, tokens: int) -> list[Sequence]:
        return [Sequence(row=0, attempt=attempt, token_ids=[1] * (tokens + 1), prompt_length=1, mask=[1] * tokens,
                         logprobs=[-1.0] * tokens, reward=reward)]  # fmt: skip

    group = [rollout(0, 1.0, 3), rollout(1, 0.0, 2), rollout(2, None, 2), rollout(3, 0.6, 1), rollout(4, 0.5, 4)]
    five = plan(samples_per_row=5, rows_per_step=1, loss="rejection")
    kept = weigh_rollouts(group, five)
    assert [(one.sequence.attempt, one.advantage, one.weight) for [one] in kept] == [(0, 1.0, 0.25), (3, 1.0, 0.25)]
    assert weigh_rollouts([rollout(n, 1.0, 3) for n in range(5)], five) == [], "equal rewards teach nothing"


def test_a_rollout_weighs_the_same_in_one_part_or_in_several() -> None:
    def part(row: int, attempt: int, reward: float | None, mask: list[int], number: int = 0) -> Sequence:
        return Sequence(
            row=row, attempt=attempt, token_ids=[1, *mask], prompt_length=1, mask=mask, logprobs=[-1.0] * len(mask),
            reward=reward, part=number,
        )  # fmt: skip

    whole, failed = [part(0, 0, 1.0, [1, 0, 1, 1])], [part(1, 0, None, [1, 1])]
    forked = [part(0, 1, 0.0, [1]), part(0, 1, 0.0, [0, 1, 0, 1], 1)]
    for loss, weight in (("grpo", 1 / 12), ("dapo", 1 / 6), ("dr_grpo", 1 / 40)):
        weighed = weigh_rollouts([whole, forked, failed, []], plan(loss=loss, scale_rewards="none"))
        assert [[one.sequence for one in rollout] for rollout in weighed] == [whole, forked]
        assert [one.advantage for rollout in weighed for one in rollout] == [0.5, -0.5, -0.5]
        assert [one.weight for rollout in weighed for one in rollout] == pytest.approx([weight] * 3)
