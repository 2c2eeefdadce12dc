"""Confidence intervals and distributions of a run's values, from the numbers of `osmosis.base.stats`.

Intervals are 95 % unless asked otherwise. What is clustered is clustered by row: attempts at one row are not
independent observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from osmosis.base.stats import bootstrap_bounds, clustered_variance, quantile, t_quantile
from osmosis.records.report import Distribution, Interval


def mean_interval(sums: Sequence[float], sizes: Sequence[int], level: float = 0.95) -> Interval | None:
    """The clustered t interval of a mean of values without known bounds; None with fewer than two rows."""
    mean, variance, rows = clustered_variance(sums, sizes)
    if rows < 2:
        return None
    half = t_quantile((1 + level) / 2, rows - 1) * math.sqrt(variance)
    return Interval(low=mean - half, high=mean + half, level=level)


def bounded_interval(
    sums: Sequence[float], sizes: Sequence[int], level: float = 0.95, *, most: int | None = None
) -> Interval | None:
    """The interval of a mean of values between 0 and 1, clustered by row; None with fewer than two rows.

    Wilson's score interval (1927) with the effective sample size that the clusters leave, `m (1 - m) / variance`, and
    Student's t for the few rows it is estimated from (Korn and Graubard 1998; Franco et al. 2019 compare the choices).
    Stays between 0 and 1, and does not shrink to a point when everything passes.
    `most`: how many yes-or-no outcomes the values are made of, which is also the most they can tell; None when they
    are grades, whose spread may be as small as it is.
    """
    mean, variance, rows = clustered_variance(sums, sizes)
    if rows < 2:
        return None
    n = float(rows)
    if 0 < mean < 1 and variance > 0:
        n = max(1.0, mean * (1 - mean) / variance)
        n = n if most is None else min(float(most), n)
    elif 0 < mean < 1 and most is None:
        return Interval(low=mean, high=mean, level=level)
    t = t_quantile((1 + level) / 2, rows - 1)
    centre = (mean + t * t / (2 * n)) / (1 + t * t / n)
    half = t * math.sqrt(mean * (1 - mean) / n + t * t / (4 * n * n)) / (1 + t * t / n)
    # Rounding must not leave an end beside the mean that it touches.
    return Interval(low=min(mean, max(0.0, centre - half)), high=max(mean, min(1.0, centre + half)), level=level)


def rate_interval(passes: Sequence[float], sizes: Sequence[int], level: float = 0.95) -> Interval | None:
    """`bounded_interval` of the share of attempts that passed."""
    return bounded_interval(passes, sizes, level, most=sum(sizes))


def plain_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """The t interval of a mean of independent values."""
    return mean_interval(values, [1] * len(values), level)


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


def bootstrap_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """The percentile bootstrap of a mean; the values are one per row, so that rows are what is drawn."""
    bounds = bootstrap_bounds(values, level=level)
    return None if bounds is None else Interval(low=bounds[0], high=bounds[1], level=level)
