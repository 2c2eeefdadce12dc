"""Statistics as plain functions over numbers: no record, no library, no randomness without a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

DEFAULT_KS = (1, 3, 5, 10)
"""The k of pass@k that are always looked at, as far as there are as many attempts."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` attempts, drawn from `n` of which `c` passed, passed.

    Unbiased (Chen et al. 2021, arXiv:2107.03374): `1 - C(n-c, k) / C(n, k)`.
    """
    if c <= 0:
        return 0.0
    if n - c < k or n <= k or c >= n:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of `k` attempts passed: `C(c, k) / C(n, k)`."""
    if c < k:
        return 0.0
    return math.comb(c, k) / math.comb(n, k) if n >= k else float(c >= n)


def t_quantile(p: float, df: int) -> float:
    """Student's t quantile (Hill 1970), exact for one and two degrees of freedom."""
    if df <= 0:
        return math.inf
    if df == 1:
        return math.tan(math.pi * (p - 0.5))
    if df == 2:
        return (2 * p - 1) * math.sqrt(2 / max(4 * p * (1 - p), 1e-300))
    tail = 2 * (1 - p)
    a = 1 / (df - 0.5)
    b = (48 / a) / a
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * df
    y = (d * tail) ** (2 / df)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tail / 2)
        y = x * x
        if df < 5:
            c += 0.3 * (df - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((df + 6) / (df * y) - 0.089 * d - 0.822) * (df + 2) * 3) + 0.5 / (df + 4)) * y - 1) * (df + 1) / (
            df + 2
        ) + 1 / y
    return math.sqrt(df * y)


def clustered_variance(sums: Sequence[float], sizes: Sequence[int]) -> tuple[float, float, int]:
    """Mean over all observations, its variance with rows as clusters, and how many rows there are."""
    total = sum(sizes)
    rows = len(sizes) - sizes.count(0)
    if not total:
        return 0.0, 0.0, 0
    mean = sum(sums) / total
    if rows < 2:
        return mean, math.inf, rows
    spread = sum([(s - mean * n) ** 2 for s, n in zip(sums, sizes, strict=True)])
    return mean, rows / (rows - 1) * spread / total**2, rows


class Spread(NamedTuple):
    """How values are spread; `std` is that of the population."""

    mean: float
    std: float
    min: float
    median: float
    max: float


def spread(ordered: Sequence[float]) -> Spread | None:
    """Of values that are sorted; None of none. Sums are exact, so that nothing depends on an order."""
    if not ordered:
        return None
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum([(value - mean) ** 2 for value in ordered]) / len(ordered)
    return Spread(mean, math.sqrt(variance), ordered[0], quantile(ordered, 0.5), ordered[-1])


def quantile(ordered: Sequence[float], q: float) -> float:
    """By linear interpolation, of values that are sorted."""
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mcnemar(gained: int, lost: int) -> float:
    """The exact two-sided p-value for as many gains and losses among pairs."""
    n = gained + lost
    if not n:
        return 1.0
    if n > 2000:
        z = (abs(gained - lost) - 1) / math.sqrt(n)
        return min(1.0, 2 * (1 - NormalDist().cdf(max(0.0, z))))
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1))
    return float(min(1.0, 2 * tail / 2**n))


def bootstrap_bounds(
    values: Sequence[float], *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """The percentile bootstrap of a mean, drawing values with replacement; None with fewer than two."""
    if len(values) < 2:
        return None
    source = random.Random(seed)
    size = len(values)
    means = sorted(sum(source.choices(values, k=size)) / size for _ in range(draws))
    return quantile(means, (1 - level) / 2), quantile(means, (1 + level) / 2)
