"""Intervals and distributions of a run's values. A row is one observation: attempts at one row are not independent.
`benchmarks/coverage.py` simulates how often each interval covers the truth."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from osmosis.base.stats import BoundedMean, Tails, quantile
from osmosis.records.run.report import Bounds, Distribution, Interval

ROWS_WITHOUT_BOUNDS = 20  # Fewer rows support no interval of values whose bounds are unknown
UNSEEN = 1.0  # How far unbounded values may lie beyond those seen, in ranges of those seen


def bounded_interval(
    sums: Sequence[float], sizes: Sequence[int], bounds: Bounds = (0.0, 1.0), level: float = 0.95
) -> Interval | None:
    """Return the interval of the mean, given each row's sum and number; None with one row. It is Gaffke's
    (`osmosis.base.stats`): never beyond the bounds, and never a point, even when all is equal."""
    bounded = BoundedMean(zip(sums, sizes, strict=True), *bounds)
    if bounded.rows < 2:
        return None
    low, high = bounded.interval(level)
    return Interval(low=low, high=high, level=level)


def bounds_of(
    extremes: Bounds, declared: Bounds | None, scored: Sequence[float], rows: int
) -> tuple[Bounds | None, bool]:
    """Return the bounds that an interval uses (None: no interval), and whether they are known: declared, or 0 and 1
    when every value is one of them and some are 0. Others are assumed beyond the extremes seen, from 20 rows on."""
    if declared is not None and (scale := scale_of(extremes, declared)) is not None:
        return scale, True
    if all(value in (0.0, 1.0) for value in scored):
        return ((0.0, 1.0), True) if 0.0 in scored or not len(scored) else ((-1.0, 1.0), False)
    return (beyond(extremes) if rows >= ROWS_WITHOUT_BOUNDS and extremes[0] < extremes[1] else None), False


def beyond(extremes: Bounds) -> Bounds:
    low, high = extremes
    reach = UNSEEN * (high - low)
    return low - reach, high + reach


def scale_of(extremes: Bounds, declared: Bounds | None) -> Bounds | None:
    low, high = declared or (0.0, 1.0)
    if declared is not None:
        low, high = min(low, 0.0) if extremes[0] == 0 else low, max(high, 0.0) if extremes[1] == 0 else high
    return (low, high) if low <= extremes[0] and extremes[1] <= high and math.isfinite(high - low) else None


FALSE_ALARMS = 0.025  # Chance that a bar is called missed although the true figure is at it


def missed_bar(
    name: str, bar: float, value: float | None, interval: Interval | None, *, strict: bool = False
) -> str | None:
    """Return a sentence where the upper end of the interval (`strict`: the lower one) is below the bar, else None."""
    if value is None:
        return f"{name}: nothing was scored"
    low, high = (interval.low, interval.high) if interval is not None else (value, value)
    if (low if strict else high) >= bar:
        return None
    between = f" ({low:.3g} to {high:.3g})" if interval is not None else ""
    if strict and high >= bar:
        return f"{name} {value:.3g}{between} is not shown to reach {bar:g}"
    chance = f", a false alarm in at most {FALSE_ALARMS:.1%} of runs" if interval is not None else ""
    return f"{name} {value:.3g}{between} is below {bar:g}{chance}"


def pair_of(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def distribution(values: Sequence[float]) -> Distribution | None:
    if not len(values):
        return None
    ordered = sorted(values)
    return Distribution(
        mean=math.fsum(ordered) / len(ordered),
        median=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p99=quantile(ordered, 0.99),
        min=ordered[0],
        max=ordered[-1],
    )


Verdict = Literal["better", "worse", "no clear difference", "too few rows to tell", "not shown on unseen rows"]
LEVEL = 0.95
POWER = 0.8
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Difference:
    tested: BoundedMean | None  # Absent when all scores are equal, on a scale that is not known
    level: float  # Higher where several differences are looked at (Bonferroni)
    enough: bool
    error: float = 0.0  # Standard error of the mean difference

    @property
    def tails(self) -> Tails:
        return self.tested.tails(0.0) if self.tested else Tails(1.0, 1.0)

    @property
    def interval(self) -> Interval | None:
        if self.tested is None or not self.enough:
            return None
        low, high = self.tested.interval(self.level)
        return Interval(low=low, high=high, level=self.level)

    @property
    def detectable(self) -> float | None:
        """Return the smallest true difference that rows like these show in 80 % of runs; None with too few rows."""
        interval = self.interval
        if interval is None or self.tested is None:
            return None
        beyond_noise = max(interval.high - self.tested.mean, self.tested.mean - interval.low)
        return beyond_noise + _NORMAL.inv_cdf(POWER) * self.error


def difference_of(
    rows: Sequence[float],
    extremes: Bounds,
    declared: Bounds | None,
    looks: int = 1,
    level: float = LEVEL,
    largest_change: float | None = None,
) -> Difference:
    scale = (0.0, largest_change) if largest_change is not None else scale_of(extremes, declared)
    level = 1 - (1 - level) / looks
    enough = 0.5 ** len(rows) < 1 - level if scale else len(rows) >= ROWS_WITHOUT_BOUNDS
    low, high = scale or beyond(extremes)
    tested = BoundedMean(((row, 1) for row in rows), low - high, high - low, mid=True) if low < high else None
    mean = math.fsum(rows) / max(1, len(rows))
    variance = math.fsum([(row - mean) ** 2 for row in rows]) / max(1, len(rows) - 1)
    return Difference(tested, level, enough, math.sqrt(variance / max(1, len(rows))))


def verdict_of(differences: Sequence[Difference], level: float = LEVEL) -> tuple[Verdict, float | None]:
    """Return the verdict (`worse`: one difference is clearly negative, `better`: all are positive) and its p-value."""
    if not all(difference.enough for difference in differences):
        return "too few rows to tell", None
    looks = len(differences)
    worse = min(1.0, 2 * looks * min(difference.tails.below for difference in differences))
    better = min(1.0, 2 * looks * max(difference.tails.above for difference in differences))
    p_value = min(worse, better)
    if p_value >= 1 - level:
        return "no clear difference", p_value
    return ("worse" if worse < better else "better"), p_value


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted_values: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, i) in enumerate(tested):
        least = adjusted_values[i] = max(least, min(1.0, p * (len(tested) - rank)))
    return adjusted_values


ALPHA = 0.05
_STEPS = 200


def spent(share: float, alpha: float = ALPHA) -> float:
    if share <= 0:
        return 0.0
    return 4 * (1 - _NORMAL.cdf(_NORMAL.inv_cdf(1 - alpha / 4) / math.sqrt(min(1.0, share))))


def levels(
    shares: Sequence[float], alpha: float = ALPHA, spending: Callable[[float, float], float] = spent
) -> list[float]:
    """Return the two-sided p-value below which each look ends the test; `spending` says how much of alpha is spent at a
    share of the rollouts. The sum of the differences is a Brownian motion (Jennison and Turnbull, "Group Sequential
    Methods", 2000, chapter 19), integrated from look to look. Raise ValueError for shares that do not increase."""
    if list(shares) != sorted(set(shares)) or not shares or not 0 < shares[0] <= shares[-1] <= 1:
        raise ValueError(f"shares must increase and be within 0 and 1, got {list(shares)}")
    level_list: list[float] = []
    going_on: list[tuple[float, float]] = [(0.0, 1.0)]
    """Places of the sum where the test has not ended, with their weights."""
    before = used = 0.0
    for share in shares:
        look_share = spending(share, alpha) - used
        step = math.sqrt(share - before)
        bound = _bound(going_on, step, look_share)
        level_list.append(2 * (1 - _NORMAL.cdf(bound / math.sqrt(share))))
        going_on = _inside(going_on, step, bound)
        before, used = share, used + look_share
    return level_list


def _bound(places: Sequence[tuple[float, float]], step: float, share: float) -> float:
    low, high, root = 0.0, 40.0, step * math.sqrt(2)
    for _ in range(60):
        middle = (low + high) / 2
        tails = (w * (math.erfc((middle - point) / root) + math.erfc((middle + point) / root)) for point, w in places)
        if sum(tails) / 2 > share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _inside(places: Sequence[tuple[float, float]], step: float, bound: float) -> list[tuple[float, float]]:
    width = 2 * bound / _STEPS
    scale = 1 / (step * math.sqrt(2 * math.pi))
    densities = []
    for i in range(_STEPS + 1):
        at = -bound + i * width
        density = scale * sum(weight * math.exp(-(((at - point) / step) ** 2) / 2) for point, weight in places)
        simpson = 1 if i in (0, _STEPS) else 4 if i % 2 else 2
        densities.append((at, density * simpson * width / 3))
    return densities
