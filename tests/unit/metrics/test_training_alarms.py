"""Alarms of training: each sign raises its own, and a run that learns raises none."""

from __future__ import annotations

import pytest

from osmosis.metrics.warnings import Curve, training_alarms


def curve(*values: float) -> Curve:
    return list(enumerate(values, start=1))


RISING = curve(0.4, 0.42, 0.45, 0.6, 0.7, 0.8)
HEALTHY: dict[str, Curve] = {
    "rollout/raw_reward": RISING,
    "rollout/failed_ratio": curve(0, 0.01, 0, 0, 0.02, 0),
    "rollout/no_signal_ratio": curve(0.1, 0.2, 0.1, 0.3, 0.4, 0.5),
    "rollout/truncated_ratio": curve(0.1, 0.1, 0.05, 0, 0, 0),
    "rollout/response_lengths": curve(10, 10, 11, 30, 30, 30),
    "rollout/repetition_ratio": curve(0, 0, 0, 0.1, 0.1, 0.1),
    "train/entropy_loss": curve(1.0, 0.9, 0.8, 0.6, 0.5, 0.4),
}


def test_a_run_that_learns_raises_none() -> None:
    assert training_alarms(HEALTHY) == []
    assert training_alarms({}) == []


@pytest.mark.parametrize(
    ("key", "bad", "said"),
    [
        ("rollout/failed_ratio", curve(0, 0, 0, 0.6, 0.7, 0.8), "have no reward"),
        ("rollout/no_signal_ratio", curve(0.5, 0.5, 0.5, 0.95, 1, 1), "nothing is learned"),
        ("rollout/truncated_ratio", curve(0.1, 0.1, 0.1, 0.4, 0.5, 0.5), "cut off and rising"),
        ("train/entropy_loss", curve(1, 1, 1, 0.1, 0.05, 0.01), "no longer explores"),
        ("rollout/repetition_ratio", curve(0, 0, 0.1, 0.5, 0.5, 0.6), "pay for repetition"),
        ("rollout/raw_reward", curve(0.4, 0.4, 0.4, 0.4, 0.4, 0.4), "pay for length"),
        ("eval/validation/reward", curve(0.5, 0.4), "pay for length"),
    ],
)
def test_each_sign_has_its_alarm(key: str, bad: Curve, said: str) -> None:
    (alarm,) = training_alarms({**HEALTHY, key: bad})
    assert said in alarm


def test_a_reward_that_rises_while_the_sealed_grader_falls() -> None:
    curves = {**HEALTHY, "eval/validation/reward": curve(0.4, 0.6, 0.8), "eval/sealed": curve(0.5, 0.6, 0.4)}
    (alarm,) = training_alarms(curves)
    assert "risen from 0.6 to 0.8" in alarm
    assert "fallen from 0.6 to 0.4" in alarm
    assert training_alarms({**curves, "eval/sealed": curve(0.5, 0.6, 0.58)}) == []


@pytest.mark.parametrize("key", ["rollout/no_signal_ratio", "rollout/truncated_ratio", "rollout/failed_ratio"])
def test_one_bad_step_is_noise(key: str) -> None:
    assert training_alarms({**HEALTHY, key: curve(0, 0, 0, 0, 0, 1)}) == []
