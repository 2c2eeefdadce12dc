"""The gate before a training run: what refuses, what warns, what is forecast."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from osmosis.metrics.training import Gate, Tried, will_it_train
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.training import plan_training

CONFIG = TrainingConfig.model_validate(
    {
        "experiment": {"rollout": "r", "entrypoint": "main.py", "model_path": "tiny", "dataset": "d"},
        "training": {"rollout_batch_size": 8, "max_response_length": 100, "agent_workflow_timeout_s": 10},
    }
)


def gate(
    rewards: Sequence[Sequence[float | None]],
    *,
    rows: int = 100,
    seconds: float = 1.0,
    tokens: int = 5,
    at_once: int | None = None,
) -> Gate:
    tried = [Tried(f"r{row}", value, seconds, tokens) for row, group in enumerate(rewards) for value in group]
    return will_it_train(CONFIG, plan_training(CONFIG, range(rows)), tried, at_once=at_once)


def codes(found: Gate) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in found.findings]


def test_rows_whose_attempts_differ_train() -> None:
    found = gate([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.5, 1.0]])
    assert (found.no_signal, found.groups, found.mean_reward) == (0.0, 4, 0.5625)
    assert codes(found) == []
    assert found.p95_s == 1.0
    assert found.least_s == plan_training(CONFIG, range(100)).steps + plan_training(CONFIG, range(100)).validations


@pytest.mark.parametrize(
    ("rewards", "code"),
    [
        ([[0.0] * 8] * 100, "no-signal"),
        ([[1.0] * 8] * 100 + [[0.0] * 8] * 100, "no-signal"),
        ([[0.0]] * 800, "no-signal"),
        ([[None, None]] * 4, "all-failed"),
    ],
)
def test_what_makes_learning_impossible(rewards: list[list[float | None]], code: str) -> None:
    found = gate(rewards)
    assert codes(found) == [(code, "error")]
    assert found.hopeless
    assert all(finding.fix for finding in found.findings)


def test_a_dataset_that_does_not_fill_a_step() -> None:
    found = gate([[0.0, 1.0]] * 4, rows=5)
    assert codes(found) == [("too-few-rows", "error")]
    assert "rollout_batch_size = 8" in found.findings[0].what


@pytest.mark.parametrize(
    ("rewards", "change", "code", "severity"),
    [
        ([], {}, "no-eval", "warning"),
        ([[0.0], [1.0], [0.0]], {}, "no-signal", "warning"),
        ([[0.0]] * 8, {}, "no-signal", "warning"),
        ([[0.0] * 4] * 4, {}, "no-signal", "warning"),
        ([[1.0], [1.0]], {}, "no-signal", "warning"),
        ([[0.0] * 8] * 9 + [[0.0, 1.0] * 4], {}, "no-signal", "warning"),
        ([[0.0, 1.0]] * 3 + [[0.0, None]], {}, "failed", "warning"),
        ([[0.0, 1.0]] * 4, {"tokens": 100}, "truncated", "warning"),
        ([[0.0, 1.0]] * 4, {"seconds": 6.0}, "slow", "warning"),
        ([[0.0, 1.0]] * 4, {"at_once": 4}, "at-once", "info"),
    ],
)
def test_what_is_worth_a_word(
    rewards: list[list[float | None]], change: dict[str, int], code: str, severity: str
) -> None:
    found = gate(rewards, **change)  # type: ignore[arg-type]
    assert codes(found) == [(code, severity)]
    assert not found.hopeless


def test_a_failed_rollout_is_no_reward_of_its_group() -> None:
    found = gate([[1.0, None], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [None, None]])
    assert (found.groups, found.no_signal) == (3, 0.0)


@pytest.mark.parametrize(
    ("rate", "rows", "attempts"), [(0.1, 8, 1), (0.05, 20, 1), (0.05, 4, 2), (0.9, 4, 2), (0.3, 20, 8)]
)
def test_a_training_that_would_work_is_not_refused(rate: float, rows: int, attempts: int) -> None:
    source, size = Random(1), CONFIG.training.n_samples_per_prompt
    truth = 1 - rate**size - (1 - rate) ** size
    hits = 0
    for _ in range(60):
        found = gate([[float(source.random() < rate) for _ in range(attempts)] for _ in range(rows)])
        assert not found.hopeless
        assert found.signal_interval is not None
        hits += found.signal_interval.low <= truth <= found.signal_interval.high
        assert (found.signal is None) == (attempts == 1)
    assert hits >= 56
