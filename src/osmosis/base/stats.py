import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

DEFAULT_KS = (1, 3, 5, 10)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that at least one of `k` attempts, drawn from `n` of which `c` passed, passed. Unbiased (Chen
    et al. 2021, arXiv:2107.03374): `1 - C(n-c, k) / C(n, k)`."""
    if c <= 0:
        return 0.0
    if n - c < k or n <= k or c >= n:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_hat_k(n: int, c: int, k: int) -> float:
    if c < k:
        return 0.0
    return math.comb(c, k) / math.comb(n, k) if n >= k else float(c >= n)


class Spread(NamedTuple):
    """`std` is that of the population."""

    mean: float
    std: float
    min: float
    median: float
    max: float


def spread(ordered: Sequence[float]) -> Spread | None:
    if not ordered:
        return None
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum([(value - mean) ** 2 for value in ordered]) / len(ordered)
    return Spread(mean, math.sqrt(variance), ordered[0], quantile(ordered, 0.5), ordered[-1])


def quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    ranks = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    middle = (len(pairs) + 1) / 2
    both = math.fsum((x - middle) * (y - middle) for x, y in zip(*ranks, strict=True))
    sizes = [math.fsum((rank - middle) ** 2 for rank in side) for side in ranks]
    return both / math.sqrt(sizes[0] * sizes[1]) if all(sizes) else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in values]


_NORMAL = NormalDist()
_BINS = 400  # Number of different rows; more are merged with neighbours: the mean stays exact, the variance to 1e-5
_FAR = 12.0
_NOTHING = 1e-100  # Relative size of a term that is left out: it decides nothing, and its square underflows


class Rows(NamedTuple):
    """Equal rows: sum and number of the values of one row, and the number of such rows."""

    total: float
    size: float
    rows: float


class Tails(NamedTuple):
    above: float
    below: float

    @property
    def p_value(self) -> float:
        return min(1.0, 2 * min(self.above, self.below))


class BoundedMean:
    """Infer the mean over all values of some rows, each value between `low` and `high`. With `mid` half of the chance
    of the very sample seen counts (mid-p: Lancaster 1961; Fagerland, Lydersen and Laake 2013)."""

    def __init__(self, rows: Iterable[tuple[float, float]], low: float, high: float, *, mid: bool = False) -> None:
        if not low < high:
            raise ValueError(f"bounds must be two different numbers in order, got {low} and {high}")
        self.groups = _merged(rows, low, high)
        self.rows = sum(int(group.rows) for group in self.groups)
        self.low, self.high, self.mid = low, high, mid
        self._values = math.fsum(group.size * group.rows for group in self.groups)
        self.mean = math.fsum(group.total * group.rows for group in self.groups) / self._values if self.rows else 0.0

    def tails(self, mean: float) -> Tails:
        if not self.rows:
            return Tails(1.0, 1.0)
        with_low = self._below(mean, self.low)
        with_high = self._below(mean, self.high)
        if self.mid:
            middle = (with_low + with_high) / 2
            return Tails(middle, 1 - middle)
        return Tails(with_low, 1 - with_high)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        if not self.rows:
            return self.low, self.high
        tail = (1 - level) / 2
        mean = min(self.high, max(self.low, self.mean))
        lower = _solve(lambda m: self.tails(m).above, tail, self.low, mean)
        upper = _solve(lambda m: self.tails(m).below, tail, self.high, mean)
        return min(mean, lower), max(mean, upper)

    def _below(self, mean: float, end: float) -> float:
        terms = [(group.rows, group.total - mean * group.size) for group in self.groups]
        terms.append((1.0, (end - mean) * self._values / self.rows))
        return chance_below_zero(terms)


def chance_below_zero(terms: Sequence[tuple[float, float]]) -> float:
    """Return `P(sum(scale * G) < 0)` of independent gamma variables `G`; terms are (shape, scale)."""
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
        root = min(s + 0.9 * (right - s), max(s - 0.9 * (s - left), s - slope / curvature))
        if abs(root - s) <= 1e-10 * abs(root) or root == s:
            return root
        s = root
    return s


def _solve(chance: Callable[[float], float], goal: float, outer: float, inner: float) -> float:
    if outer == inner:
        return outer

    def gap(m: float) -> float:
        return _NORMAL.inv_cdf(min(1 - 1e-16, max(1e-30, chance(m)))) - target

    target = _NORMAL.inv_cdf(goal)
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
        estimate = gap(m)
        if abs(estimate) < 1e-6 or abs(b - a) < 1e-13 * (abs(a) + abs(b)):
            return m
        if estimate > 0:
            b, high = m, estimate
            low, side = (low / 2, 1) if side == 1 else (low, 1)
        else:
            a, low = m, estimate
            high, side = (high / 2, -1) if side == -1 else (high, -1)
    return m


def _merged(rows: Iterable[tuple[float, float]], low: float, high: float) -> list[Rows]:
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
