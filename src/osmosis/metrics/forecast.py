"""Cost and duration of a whole run, predicted from a few of its rollouts: the total that will be seen, not its mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from random import Random
from statistics import NormalDist

from osmosis.base.jsonable import JsonObject
from osmosis.base.stats import BoundedMean
from osmosis.metrics.intervals import pair_of
from osmosis.records.run.report import Interval
from osmosis.records.run.rollout import Rollout

LEVEL = 0.95
LEAST_PILOT = 5
_SIMULATED = 20_000
UNSEEN = 3.0
"""The most that one rollout can take, in multiples of the pilot's greatest value."""


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
            cost = f"{self.cost_usd:.4g} USD{_range(self.cost_interval, '.4g')}"
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
    """Return when the last of the rollouts ends, `concurrency` of them at once, and its prediction interval. That is no
    sooner than the work shared out evenly, and later by less than one rollout (R. Graham, "Bounds on multiprocessing
    timing anomalies", SIAM Journal on Applied Mathematics 17, 1969). The estimate draws the durations from the
    pilot's."""
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
