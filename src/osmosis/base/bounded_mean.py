"""What is certain about the mean of values between two bounds, from as few as a handful of rows.

Gaffke's bound (2005; Learned-Miller and Thomas, arXiv:1905.06208, study its coverage): the sample gets one more value,
which lies at the end of the range, and each value a random weight, uniformly distributed (Dirichlet(1, ..., 1)); the
bound is the quantile of that weighted mean. What the sample did not show is thus allowed for by as much as its size
permits, whatever the distribution. Of values 0 and 1 it is the interval of Clopper and Pearson (1934), of differences
-1, 0 and 1 it is McNemar's exact test; a row that was attempted several times is one value, so that attempts need not
be independent.

The weights are independent exponentials over their sum, so `mean < m` is `sum(w_i (x_i - m)) < 0`; its chance is
computed by the saddlepoint approximation of Lugannani and Rice (1980) as Barndorff-Nielsen wrote it, not by drawing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

_NORMAL = NormalDist()
_BINS = 400
"""More different rows than these are merged with their neighbours; the mean stays exact, the variance to 1e-5."""
_FAR = 12.0
"""Standard deviations beyond which a chance is 0 or 1."""
_NOTHING = 1e-100
"""A term this much smaller than the largest decides nothing, and its square is no number any more."""


class Rows(NamedTuple):
    """Equal rows: the sum of a row's values, how many values it has, and how many such rows there are."""

    total: float
    size: float
    rows: float


class Tails(NamedTuple):
    """How likely a mean as far from the one asked about would be, if that were the true one: on either side."""

    above: float
    """Small: the true mean is above it."""
    below: float

    @property
    def p_value(self) -> float:
        """Two-sided."""
        return min(1.0, 2 * min(self.above, self.below))


class BoundedMean:
    """The mean over all values of some rows, each value between `low` and `high`.

    `mid`: half of the chance of the very sample seen counts (the mid-p of Lancaster 1961), which is less cautious:
    of differences -1, 0 and 1 it is the test of Fagerland, Lydersen and Laake (2013).
    """

    def __init__(self, rows: Iterable[tuple[float, float]], low: float, high: float, *, mid: bool = False) -> None:
        """`rows`: sum and number of the values of each; those without values count nowhere."""
        if not low < high:
            raise ValueError(f"bounds must be two different numbers in order, got {low} and {high}")
        self.groups = _merged(rows, low, high)
        self.rows = sum(int(group.rows) for group in self.groups)
        self.low, self.high, self.mid = low, high, mid
        self._values = math.fsum(group.size * group.rows for group in self.groups)
        self.mean = math.fsum(group.total * group.rows for group in self.groups) / self._values if self.rows else 0.0

    def tails(self, mean: float) -> Tails:
        """Against this mean. Without rows, nothing speaks against anything."""
        if not self.rows:
            return Tails(1.0, 1.0)
        with_low = self._below(mean, self.low)
        with_high = self._below(mean, self.high)
        if self.mid:
            middle = (with_low + with_high) / 2
            return Tails(middle, 1 - middle)
        return Tails(with_low, 1 - with_high)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Every mean that neither tail rules out at this level."""
        if not self.rows:
            return self.low, self.high
        tail = (1 - level) / 2
        mean = min(self.high, max(self.low, self.mean))
        lower = _solve(lambda m: self.tails(m).above, tail, self.low, mean)
        upper = _solve(lambda m: self.tails(m).below, tail, self.high, mean)
        return min(mean, lower), max(mean, upper)

    def _below(self, mean: float, end: float) -> float:
        """The chance that the weighted mean is below this one, with one more row at this end of the range."""
        terms = [(group.rows, group.total - mean * group.size) for group in self.groups]
        terms.append((1.0, (end - mean) * self._values / self.rows))
        return chance_below_zero(terms)


def chance_below_zero(terms: Sequence[tuple[float, float]]) -> float:
    """`P(sum(scale * G) < 0)` of independent gamma variables `G` of the given shapes; terms are (shape, scale)."""
    top = max([abs(scale) for _, scale in terms])
    unit = -math.frexp(top)[1]  # a power of 2 loses no digit; the chance does not depend on the unit
    terms = [(shape, math.ldexp(scale, unit)) for shape, scale in terms if abs(scale) > _NOTHING * top]
    lows = [scale for _, scale in terms if scale < 0]
    highs = [scale for _, scale in terms if scale > 0]
    if not lows:
        return 0.0
    if not highs:
        return 1.0
    s = _saddlepoint(terms, 1 / min(lows), 1 / max(highs))
    log_moment = -sum([shape * math.log1p(-s * scale) for shape, scale in terms])
    r = math.copysign(math.sqrt(max(0.0, -2 * log_moment)), s)
    curvature = sum([shape * (scale / (1 - s * scale)) ** 2 for shape, scale in terms])
    if abs(r) < 1e-3:  # the mean itself: the formula's limit there
        skew = 2 * sum([shape * (scale / (1 - s * scale)) ** 3 for shape, scale in terms])
        return _NORMAL.cdf(r + skew / (6 * curvature**1.5))
    u = s * math.sqrt(curvature)
    return _NORMAL.cdf(max(-_FAR, min(_FAR, r + math.log(u / r) / r)))


def _saddlepoint(terms: Sequence[tuple[float, float]], left: float, right: float) -> float:
    """Where the derivative of the cumulant function is 0: Newton's method inside a bracket that shrinks."""
    s = 0.0
    for _ in range(80):
        slope = curvature = 0.0
        for shape, scale in terms:
            step = scale / (1 - s * scale)
            slope += shape * step
            curvature += shape * step * step
        if slope > 0:
            right = s
        else:
            left = s
        # Never to an end of the bracket, where the function has its poles.
        found = min(s + 0.9 * (right - s), max(s - 0.9 * (s - left), s - slope / curvature))
        if abs(found - s) <= 1e-10 * abs(found) or found == s:
            return found
        s = found
    return s


def _solve(chance: Callable[[float], float], wanted: float, outer: float, inner: float) -> float:
    """Where between `outer` and `inner` the chance is as wanted: regula falsi (Illinois) on the normal scale."""
    if outer == inner:
        return outer

    def gap(m: float) -> float:
        return _NORMAL.inv_cdf(min(1 - 1e-16, max(1e-30, chance(m)))) - target

    target = _NORMAL.inv_cdf(wanted)
    a, b = outer, inner
    high = gap(b)
    if high <= 0:
        return b
    low = gap(a)
    if low >= 0:
        return a
    side = 0
    for _ in range(60):
        m = (a * high - b * low) / (high - low)
        found = gap(m)
        if abs(found) < 1e-6 or abs(b - a) < 1e-13 * (abs(a) + abs(b)):
            return m
        if found > 0:
            b, high = m, found
            low, side = (low / 2, 1) if side == 1 else (low, 1)
        else:
            a, low = m, found
            high, side = (high / 2, -1) if side == -1 else (high, -1)
    return m


def _merged(rows: Iterable[tuple[float, float]], low: float, high: float) -> list[Rows]:
    """Equal rows together; where too many differ, also those that are nearly equal."""
    counted = Counter(rows)
    if len(counted) <= _BINS:
        return [Rows(total, size, count) for (total, size), count in counted.items() if size]
    scale = _BINS / (high - low)
    sums: dict[tuple[float, int], float] = {}
    counts: dict[tuple[float, int], int] = {}
    for (total, size), count in counted.items():
        if size:
            key = (size, int((total / size - low) * scale))
            sums[key] = sums.get(key, 0.0) + total * count
            counts[key] = counts.get(key, 0) + count
    return [Rows(total / counts[key], key[0], counts[key]) for key, total in sums.items()]
