"""Histogram and curves of a run as shapes in the units of their drawing. Makes no markup."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from osmosis.metrics.training_curves import curve_info, in_order
from osmosis.records.run import MetricPoint

BINS = 20


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram, in units of its drawing."""

    x: float
    y: float
    width: float
    height: float
    title: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of a curve."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class CurveChart:
    """One metric over steps: a polyline in a drawing of 600 by 160, right of its scale; points to hover over."""

    key: str
    title: str
    about: str
    points: str
    dots: tuple[Dot, ...]
    first: str
    """As they are shown, like the three below."""
    latest: str
    low: str
    high: str
    steps: int


def histogram(values: Sequence[float], threshold: float, *, width: float = 600, height: float = 120) -> list[Bar]:
    """Distribution of rewards; values are ascending. Empty when there is nothing to tell."""
    if len(values) < 2 or values[0] == values[-1]:
        return []
    low, high = values[0], values[-1]
    step = (high - low) / BINS
    ends = [bisect_left(values, number, key=lambda value: int((value - low) / step)) for number in range(1, BINS)]
    counts = [end - start for start, end in pairwise([0, *ends, len(values)])]
    top = max(counts)
    wide = width / BINS
    bars = []
    for number, amount in enumerate(counts):
        tall = max(2.0, height * amount / top) if amount else 0.0
        start, end = low + number * step, low + (number + 1) * step
        title = f"{amount} rollouts from {start:.2f} to {end:.2f}"
        passed = start >= threshold or (number == BINS - 1 and high >= threshold)
        bars.append(Bar(round(number * wide + 1, 1), round(height - tall, 1), round(wide - 2, 1), tall, title, passed))
    return bars


MAX_DOTS = 120
"""With more points, a curve has a dot only at some of them, its last one among those."""


def curves(points: Sequence[MetricPoint]) -> list[tuple[str, list[CurveChart]]]:
    """One curve per metric, from its points in order of step; in groups, those that are looked at first, first."""
    by_key: dict[str, list[MetricPoint]] = {}
    for point in points:
        by_key.setdefault(point.key, []).append(point)
    groups: dict[str, list[CurveChart]] = {}
    for key in in_order(by_key):
        groups.setdefault(curve_info(key).group, []).append(_curve(key, by_key[key]))
    return list(groups.items())


def _curve(key: str, found: list[MetricPoint]) -> CurveChart:
    values = [point.value for point in found]
    low, high = min(values), max(values)
    first_step, last_step = found[0].step, found[-1].step
    across, tall = (last_step - first_step) or 1, (high - low) or 1.0
    dots = [
        Dot(
            round(70 + 520 * (p.step - first_step) / across, 1),
            round(150 - 140 * (p.value - low) / tall, 1),
            f"step {p.step}: {p.value:.4g}",
        )
        for p in found
    ]
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    every = -(-len(dots) // MAX_DOTS)
    shown = tuple(dots[::-every][::-1])
    info = curve_info(key)
    first, latest, least, most = (f"{value:.4g}" for value in (values[0], values[-1], low, high))
    return CurveChart(key, info.title, info.about, line, shown, first, latest, least, most, last_step)
