"""What a whole run will cost and take, from a few of its rollouts, with a prediction interval.

The interval is of the total that will be seen, not of its mean, and wide where a few rollouts cannot show more: one in
ten that costs ten times as much is easily missing among twenty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

from osmosis.base.bounded_mean import BoundedMean
from osmosis.base.light_dataclass import dataclass
from osmosis.records.report import Interval
from osmosis.records.rollout import Rollout

LEVEL = 0.95
LEAST_PILOT = 5
UNSEEN = 3.0
"""The most that one rollout can take: in the greatest values of the pilot."""


@dataclass(slots=True)
class Forecast:
    """Of the rollouts that are left. Seconds, US dollars, tokens."""

    measured: int
    left: int
    tokens: float
    tokens_interval: Interval | None
    cost_usd: float | None
    cost_interval: Interval | None
    seconds: float
    seconds_interval: Interval | None

    def line(self) -> str:
        """The forecast in one line."""
        cost = "cost unknown"
        if self.cost_usd is not None:
            cost = f"{self.cost_usd:.4g} USD{_range(self.cost_interval, '.4g')}"
        return (
            f"{self.left} rollouts left: {cost}, {self.tokens:,.0f} tokens{_range(self.tokens_interval, ',.0f')}, "
            f"about {self.seconds:.0f} s{_range(self.seconds_interval, '.0f')} (from {self.measured} rollouts)"
        )

    def to_dict(self) -> dict[str, Any]:
        def pair(interval: Interval | None) -> list[float] | None:
            return [interval.low, interval.high] if interval else None

        return {
            "measured": self.measured,
            "left": self.left,
            "tokens": self.tokens,
            "tokens_ci": pair(self.tokens_interval),
            "cost_usd": self.cost_usd,
            "cost_usd_ci": pair(self.cost_interval),
            "seconds": self.seconds,
            "seconds_ci": pair(self.seconds_interval),
        }


def forecast(rollouts: Sequence[Rollout], left: int, concurrency: int, attempts: int = 1) -> Forecast:
    """From the rollouts of a pilot, each of another row; `left` are still to run, `concurrency` at once, `attempts` of
    them at each row."""
    costs = [r.usage.cost_usd for r in rollouts if r.usage.cost_usd is not None]
    tokens, tokens_interval = predicted([float(r.usage.total_tokens) for r in rollouts], left, attempts)
    cost, cost_interval = predicted(costs, left, attempts) if costs else (None, None)
    lanes = max(1, min(concurrency, left or 1))
    seconds, seconds_interval = predicted([r.duration_ms / 1000 / lanes for r in rollouts], left, attempts)
    return Forecast(len(rollouts), left, tokens, tokens_interval, cost, cost_interval, seconds, seconds_interval)


def predicted(values: Sequence[float], left: int, attempts: int) -> tuple[float, Interval | None]:
    """The sum of what is left, and its prediction interval: how far off the mean of the pilot may be, and how much
    the rest varies around its own mean, combined as by Zou and Donner (2008). None with a pilot of fewer than five.

    Values lie between 0 and `UNSEEN` times the greatest seen; attempts at one row count as one value.
    """
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


def _range(interval: Interval | None, spec: str) -> str:
    return f" ({interval.low:{spec}} to {interval.high:{spec}})" if interval else ""
