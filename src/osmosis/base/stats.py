"""Statistics as plain functions over numbers: no record, no library, no randomness without a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
