"""What moves the weights: advantages of scored rollouts, over the model's own tokens, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.network, pytest.mark.flow]
SAME = 1e-3
"""Adam makes steps of the learning rate (2e-3) out of any gradient; rounding moves the weights by less than this."""
MOVED = 3e-3


@pytest.fixture(scope="module")
def found(checks: Any) -> dict[str, Any]:
    results: dict[str, Any] = checks("updates", "order", "diverged")
    return results


def test_weights_move_by_what_the_model_said_and_never_by_what_the_environment_did(found: dict[str, Any]) -> None:
    assert found["updates"]["moved"] > MOVED
    assert found["updates"]["masks_alone_move"] == 0


def test_equal_rewards_teach_nothing_and_are_counted(found: dict[str, Any]) -> None:
    assert found["updates"]["equal_rewards_move"] < SAME
    assert found["updates"]["no_signal"] == [1.0, 1.0]


def test_a_failed_rollout_is_outside_the_statistics_of_its_group(found: dict[str, Any]) -> None:
    assert found["updates"]["failed_tokens_matter"] < SAME
    assert found["updates"]["failures_matter"] > MOVED
    assert found["updates"]["a_failure_is_no_zero"] > MOVED
    assert found["updates"]["failed_ratio"] == [0.25, 0.25]


def test_pieces_of_a_batch_change_memory_and_not_the_result(found: dict[str, Any]) -> None:
    assert found["updates"]["accumulation"] < SAME


def test_losses_differ_and_iterations_report_once_per_step(found: dict[str, Any]) -> None:
    assert found["updates"]["grpo"] > MOVED
    assert found["updates"]["dr_grpo"] > MOVED
    iterations = found["updates"]["iterations"]
    assert (iterations["metrics"], iterations["kl"]) == (2, True)
    assert iterations["apart"] > MOVED


def test_the_ratio_is_to_what_a_server_sampled_with(found: dict[str, Any]) -> None:
    assert found["updates"]["own_samples_are_on_policy"] == 0
    assert found["updates"]["a_servers_logprobs_matter"] > SAME, "0 when they are not read; how much depends on the CPU"


def test_of_a_forked_rollout_the_longest_part_is_trained_on_and_it_is_said(found: dict[str, Any]) -> None:
    assert found["updates"]["forks"] == {"apart": 0.0, "count": 2.0, "notices": 1}


def test_a_step_reports_under_the_names_of_the_contract(found: dict[str, Any]) -> None:
    names = set(found["updates"]["metrics"])
    assert names >= {
        "rollout/raw_reward", "rollout/response_lengths", "rollout/total_lengths", "rollout/truncated_ratio",
        "rollout/no_signal_ratio", "rollout/failed_ratio", "rollout/forks", "train/entropy_loss", "train/loss",
        "train/lr", "train/grad_norm", "train/clip_ratio", "perf/tokens_per_s", "perf/rollout_s",
        "perf/update_s", "perf/wait_s",
    }  # fmt: skip


def test_a_gradient_that_is_no_number_ends_the_run_before_it_is_applied(found: dict[str, Any]) -> None:
    ended = found["diverged"]
    assert (ended["kind"], ended["step"]) == ("diverged", 0)
    assert ended["message"] == "the gradient of step 1 is not finite: training diverged"
    assert "lower lr" in ended["hint"]


def test_steps_have_the_rows_that_the_seed_says(found: dict[str, Any]) -> None:
    assert found["order"]["asked"] == found["order"]["expected"]
