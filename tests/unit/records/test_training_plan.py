"""What a training config comes to: rows held out, steps, rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis.records.config import TrainingConfig
from osmosis.records.training_plan import plan_training, split_rows

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "tiny", "dataset": "multiply"}


def config(**tables: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"experiment": EXPERIMENT, **tables})


def test_a_tenth_is_held_out_and_the_rest_fills_whole_steps() -> None:
    plan = plan_training(config(training={"rollout_batch_size": 16, "n_samples_per_prompt": 8}), range(100))
    assert (len(plan.rows), len(plan.validation_rows)) == (90, 10)
    assert not set(plan.rows) & set(plan.validation_rows)
    assert (plan.steps, plan.at_once, plan.validations) == (5, 128, 1)
    assert plan.rollouts == 5 * 128 + 10


@pytest.mark.parametrize(
    ("total", "wanted", "held"), [(9, None, 0), (1000, None, 32), (10, 0, 0), (10, 4, 4), (3, 50, 2)]
)
def test_how_many_rows_are_held_out(total: int, wanted: int | None, held: int) -> None:
    training, held_out = split_rows(range(total), wanted, 1)
    assert (len(held_out), len(training)) == (held, total - held)
    assert split_rows(range(total), wanted, 1) == (training, held_out)


def test_the_seed_draws_other_rows() -> None:
    assert split_rows(range(100), 10, 1) != split_rows(range(100), 10, 2)


def test_steps_end_with_the_epochs_or_before() -> None:
    training = {"rollout_batch_size": 10, "total_epochs": 3}
    assert plan_training(config(training=training), range(100)).steps == 27
    early = plan_training(config(training=training, advanced={"max_steps": 12}), range(100))
    assert (early.steps, early.validations) == (12, 2)
    assert plan_training(config(training={"rollout_batch_size": 200}), range(100)).steps == 0
