"""Intervals and distributions of a run's values. A row is one observation: attempts at one row are not independent.
`benchmarks/coverage.py` simulates how often each interval covers the truth."""

import math
from collections.abc import Sequence

from osmosis.base.stats import BoundedMean, quantile
from osmosis.records.run.report import Bounds, Distribution, Interval

ROWS_WITHOUT_BOUNDS = 20
"""Fewer rows support no interval of values whose bounds are unknown."""
UNSEEN = 1.0
"""How far unbounded values may lie beyond those seen, in ranges of those seen."""


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
    """Return the bounds that an interval uses, None for no interval, and whether they are known: declared, or 0 and 1
    when every value is one of them and some are 0 (only ones may be of a reward of -1 and 1). Others are assumed: that
    far beyond the extremes seen, a failure as 0, from 20 rows on."""
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


FALSE_ALARMS = 0.025
"""Chance that a bar is called missed although the true figure is at it."""


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
