"""Confidence intervals and distributions of a run's values, from the numbers of `osmosis.base`.

Intervals are 95 % unless asked otherwise. A row is one observation: attempts at one row are not independent. How often
each interval covers the truth is simulated by `benchmarks/coverage.py` and written down in `docs/statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from osmosis.base.bounded_mean import BoundedMean
from osmosis.base.stats import quantile
from osmosis.records.report import Bounds, Distribution, Interval

ROWS_WITHOUT_BOUNDS = 20
"""Fewer rows support no interval of values whose bounds are unknown."""
UNSEEN = 1.0
"""How far values may lie beyond those seen, where their bounds are unknown: in ranges of those seen."""


def bounded_interval(
    sums: Sequence[float], sizes: Sequence[int], bounds: Bounds = (0.0, 1.0), level: float = 0.95
) -> Interval | None:
    """Of the mean of values between `bounds`, given the sum and the number of each row's; None with one row.

    Gaffke's interval (`osmosis.base.bounded_mean`): never beyond the bounds, and never a point, even when all is equal.
    """
    found = BoundedMean(zip(sums, sizes, strict=True), *bounds)
    if found.rows < 2:
        return None
    low, high = found.interval(level)
    return Interval.made(low=low, high=high, level=level)


def unbounded_interval(
    sums: Sequence[float], sizes: Sequence[int], seen: Bounds, level: float = 0.95
) -> Interval | None:
    """The same where only the least and the greatest value `seen` are known.

    Values as far beyond those as they are apart are allowed for. None where the sample cannot support that: with few
    rows, or when all values are equal.
    """
    if len(sizes) < ROWS_WITHOUT_BOUNDS or seen[0] == seen[1]:
        return None
    return bounded_interval(sums, sizes, beyond(seen), level)


def beyond(seen: Bounds) -> Bounds:
    """The bounds that are assumed around the values seen."""
    low, high = seen
    reach = UNSEEN * (high - low)
    return low - reach, high + reach


def scale_of(seen: Bounds, declared: Bounds | None) -> Bounds | None:
    """The bounds of values: those declared, else 0 and 1 when all are between them; None = unknown.

    `seen` counts a failure as 0, which may be outside what was declared.
    """
    low, high = declared or (0.0, 1.0)
    if declared is not None:
        low, high = min(low, 0.0) if seen[0] == 0 else low, max(high, 0.0) if seen[1] == 0 else high
    return (low, high) if low <= seen[0] and seen[1] <= high and math.isfinite(high - low) else None


def distribution(values: Sequence[float]) -> Distribution | None:
    if not len(values):
        return None
    ordered = sorted(values)
    return Distribution.made(
        mean=math.fsum(ordered) / len(ordered),
        median=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p99=quantile(ordered, 0.99),
        min=ordered[0],
        max=ordered[-1],
    )
