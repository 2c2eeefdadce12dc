"""Histogram and curves, in the units of their drawing."""

from __future__ import annotations

import pytest

from osmosis.records.run import MetricPoint
from osmosis.viewer.charts import curves, histogram


def test_histogram_counts_every_value_once() -> None:
    values = sorted([0.0] * 5 + [0.5] * 3 + [1.0] * 10)
    bars = histogram(values, 1.0)
    shown = [bar for bar in bars if bar.height]
    assert [bar.title.split()[0] for bar in shown] == ["5", "3", "10"]
    assert [bar.passed for bar in shown] == [False, False, True]
    assert max(bar.height for bar in bars) == 120


@pytest.mark.parametrize("values", [[], [1.0], [0.5, 0.5]])
def test_no_histogram_of_one_value(values: list[float]) -> None:
    assert histogram(values, 1.0) == []


def test_curves() -> None:
    points = [MetricPoint(key="loss", step=step, value=value) for step, value in ((1, 2.0), (3, 1.0), (5, 0.0))]
    ((group, [found]),) = curves(points)
    assert (group, found.title, found.dots[0].title) == ("Other", "loss", "step 1: 2")
    assert (found.first, found.latest, found.low, found.high, found.steps) == ("2", "0", "0", "2", 5)
    assert found.points == "70.0,10.0 330.0,80.0 590.0,150.0"


def test_curves_stand_in_groups_and_a_long_one_keeps_its_last_dot() -> None:
    keys = ("train/lr", "rollout/raw_reward", "train/entropy_loss")
    points = [MetricPoint(key=key, step=step, value=float(step)) for key in keys for step in range(1000)]
    groups = curves(points)
    assert [(group, [one.title for one in members]) for group, members in groups] == [
        ("Reward", ["Training reward"]),
        ("Update", ["Entropy", "Learning rate"]),
    ]
    dots = groups[0][1][0].dots
    assert len(dots) <= 120
    assert dots[-1].title == "step 999: 999"
