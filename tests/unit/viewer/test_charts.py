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
    found = curves(points)[0]
    assert (found.first, found.latest, found.low, found.high, found.steps) == (2.0, 0.0, 0.0, 2.0, 5)
    assert found.points == "10.0,10.0 300.0,80.0 590.0,150.0"
