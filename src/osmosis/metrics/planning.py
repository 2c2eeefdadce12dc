"""How many rows and attempts show a difference. That of one row's means has the variance `effect + 2 * within /
attempts`; what a sample of that variance shows is asked of the very test that will judge it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from random import Random
from statistics import NormalDist

from osmosis.base.jsonable import JsonObject
from osmosis.base.stats import BoundedMean
from osmosis.metrics.intervals import difference_of, pair_of
from osmosis.records.run.report import Bounds, Interval
from osmosis.records.run.rollout import Rollout, RolloutStatus

Rows = Sequence[Sequence[float]]
MOST_ROWS = 1_000_000
MOST_ATTEMPTS = 1_000
_STEPS = 14  # Halvings of the scale: more digits than are shown
_SAMPLED = 2_000  # More rows are computed as so many, less by the root of their number


@dataclass(frozen=True, slots=True)
class Pilot:
    """Variances of a score, estimated from one or two runs."""

    rows: int
    attempts: float  # Mean number at a row
    between: float
    """Variance of the rows' true means; 0 with single attempts, which cannot tell it from that within rows."""
    within: float  # Variance of the attempts at one row, all that there is with single attempts
    effect: float  # Variance of the rows' true differences between two runs; 0 with one
    extremes: Bounds
    declared: Bounds | None = None

    @property
    def scale(self) -> float:
        low, high = self.declared or self.extremes
        return high - low

    def detectable(self, rows: int, attempts: float) -> float | None:
        """Return the smallest true difference that so many rows show in 80 % of runs; None: not even the largest."""
        if self.scale <= 0:
            return None
        low, high = 0.0, self.scale
        if not self._is_shown(high, rows, attempts):
            return None
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_shown(middle, rows, attempts) else (middle, high)
        return high

    def rows_needed(self, difference: float, attempts: float) -> int | None:
        return _least(lambda rows: self._is_shown(difference, rows, attempts), MOST_ROWS)

    def attempts_needed(self, difference: float, rows: int) -> int | None:
        return _least(lambda attempts: self._is_shown(difference, rows, attempts), MOST_ATTEMPTS)

    def _is_shown(self, difference: float, rows: int, attempts: float) -> bool:
        # Rows that all get better, or stay, vary most where a few of them move from one end to the other.
        changed = difference / self.scale
        effect = max(self.effect / self.scale / self.scale, changed * (1 - changed))
        share = effect + 2 * self.within / attempts / self.scale / self.scale
        sampled = min(rows, _SAMPLED)
        if not share * sampled <= sampled - 1:  # or not finite
            return False
        ends = max(1, math.ceil(sampled * share / 2 - 1e-9))
        step = self.scale * math.sqrt(sampled * share / (2 * ends))
        changes = [step] * ends + [-step] * ends + [0.0] * (sampled - 2 * ends)
        smallest = difference_of(changes, self.extremes, self.declared).detectable
        return smallest is not None and smallest * math.sqrt(sampled / rows) <= difference


def scores_by_row(rollouts: Iterable[Rollout], score: str) -> dict[int, list[float]]:
    """Return each row's scores, a failure as 0."""
    rows: dict[int, list[float]] = {}
    for rollout in rollouts:
        if rollout.status is not RolloutStatus.SKIPPED:
            value = rollout.scores[score].value if score in rollout.scores else None
            rows.setdefault(rollout.row_index, []).append(value or 0.0)
    return rows


def pilot_of(runs: Sequence[Rows], changes: Sequence[float] = (), declared: Bounds | None = None) -> Pilot:
    """Estimate from the scores of each row's attempts; `changes`: of the rows' means, first run to second."""
    values = [value for rows in runs for row in rows for value in row]
    pairs = [variances([(math.fsum(row), math.fsum(v * v for v in row), len(row)) for row in rows]) for rows in runs]
    between, within = (math.fsum(pair) / len(pairs) for pair in zip(*pairs, strict=True))
    attempts = len(values) / max(1, sum(map(len, runs)))
    effect = max(0.0, _variance(changes) - 2 * within / attempts)
    extremes = (min(values, default=0.0), max(values, default=0.0))
    return Pilot(len(runs[0]), attempts, between, within, effect, extremes, declared)


def variances(rows: Sequence[tuple[float, float, int]]) -> tuple[float, float]:
    """Return the variance between rows and that within them, given each row's sum, sum of squares and number."""
    total = _variance([value / size for value, _, size in rows])
    several = [max(0.0, squares - value * value / size) / (size - 1) for value, squares, size in rows if size > 1]
    if not several:
        return 0.0, total
    within = math.fsum(several) / len(several)
    share = math.fsum([1 / size for _, _, size in rows]) / len(rows)
    return max(0.0, total - within * share), within


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / max(1, len(values))
    return math.fsum([(value - mean) ** 2 for value in values]) / max(1, len(values) - 1)


def _least(is_enough: Callable[[int], bool], most: int) -> int | None:
    high = 1
    while not is_enough(high):
        if high == most:
            return None
        high = min(most, 2 * high)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


LEVEL = 0.95
LEAST_PILOT = 5
_SIMULATED = 20_000
UNSEEN = 3.0  # The most that one rollout can take, in multiples of the pilot's greatest value


@dataclass(slots=True)
class Forecast:
    measured: int
    left: int
    tokens: float
    tokens_interval: Interval | None
    cost_usd: float | None
    cost_interval: Interval | None
    seconds: float
    seconds_interval: Interval | None

    def line(self) -> str:
        cost = "cost unknown"
        if self.cost_usd is not None:
            cost = f"${self.cost_usd:.4g}{_range(self.cost_interval, '.4g')}"
        tokens = f"{self.tokens:,.0f} tokens{_range(self.tokens_interval, ',.0f')}"
        time = f"about {self.seconds:.0f} s{_range(self.seconds_interval, '.0f')}"
        return f"{self.left} rollouts left: {cost}, {tokens}, {time} (from {self.measured} rollouts)"

    def to_dict(self) -> JsonObject:
        plain = {name: getattr(self, name) for name in ("measured", "left", "tokens", "cost_usd", "seconds")}
        intervals = {"tokens": self.tokens_interval, "cost_usd": self.cost_interval, "seconds": self.seconds_interval}
        return plain | {f"{name}_ci": pair_of(interval) for name, interval in intervals.items()}


def forecast(rollouts: Sequence[Rollout], left: int, concurrency: int, attempts: int = 1) -> Forecast:
    """Predict from a pilot's rollouts, each of another row; `left` are still to run, `attempts` at each row."""
    costs = [r.usage.cost_usd for r in rollouts if r.usage.cost_usd is not None]
    tokens, tokens_interval = predicted([float(r.usage.total_tokens) for r in rollouts], left, attempts)
    cost, cost_interval = predicted(costs, left, attempts) if costs else (None, None)
    seconds, seconds_interval = predicted_time([r.duration_ms / 1000 for r in rollouts], left, concurrency, attempts)
    return Forecast(len(rollouts), left, tokens, tokens_interval, cost, cost_interval, seconds, seconds_interval)


def predicted(values: Sequence[float], left: int, attempts: int) -> tuple[float, Interval | None]:
    """Return the sum of what is left and its prediction interval, combined as by Zou and Donner (2008); None with a
    pilot of fewer than five. Attempts at one row count as one value."""
    if not values:
        return 0.0, None
    mean = math.fsum(values) / len(values)
    if len(values) < LEAST_PILOT or not left or not max(values):
        return mean * left, None
    low, high = BoundedMean(((value, 1) for value in values), 0.0, UNSEEN * max(values)).interval(LEVEL)
    variance = math.fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1)
    rest = NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt(variance * attempts / left)
    least, most = mean - math.hypot(mean - low, rest), mean + math.hypot(high - mean, rest)
    return mean * left, Interval(low=max(0.0, least) * left, high=most * left, level=LEVEL)


def predicted_time(
    durations: Sequence[float], left: int, concurrency: int, attempts: int
) -> tuple[float, Interval | None]:
    """Return when the last of the rollouts ends, `concurrency` of them at once, and its prediction interval, bounded by
    R. Graham, SIAM Journal on Applied Mathematics 17, 1969. Durations are drawn from the pilot's."""
    lanes = max(1, min(concurrency, left or 1))
    work, interval = predicted([duration / lanes for duration in durations], left, attempts)
    if lanes == 1 or not durations:
        return work, interval
    source = Random(0)
    free = [0.0] * lanes
    for duration in source.choices(durations, k=min(left, _SIMULATED)):
        heapreplace(free, free[0] + duration)
    last = max(free) - math.fsum(free) / lanes  # how much later than the mean lane
    if interval is not None:
        straggler = UNSEEN * max(durations) * (1 - 1 / lanes)
        interval = Interval(low=interval.low, high=interval.high + straggler, level=LEVEL)
    return work + last, interval


def _range(interval: Interval | None, spec: str) -> str:
    return f" ({interval.low:{spec}} to {interval.high:{spec}})" if interval else ""
