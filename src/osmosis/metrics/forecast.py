"""What a whole run will cost and take, from a few of its rollouts, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osmosis.records.report import Interval
from osmosis.records.rollout import Rollout

from .intervals import plain_interval


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


def forecast(rollouts: Sequence[Rollout], left: int, concurrency: int) -> Forecast:
    """From the rollouts of a pilot; `left` are still to run, `concurrency` at once."""
    costs = [r.usage.cost_usd for r in rollouts if r.usage.cost_usd is not None]
    tokens, tokens_interval = _total([float(r.usage.total_tokens) for r in rollouts], left)
    cost, cost_interval = _total(costs, left) if costs else (None, None)
    lanes = max(1, min(concurrency, left or 1))
    seconds, seconds_interval = _total([r.duration_ms / 1000 / lanes for r in rollouts], left)
    return Forecast(len(rollouts), left, tokens, tokens_interval, cost, cost_interval, seconds, seconds_interval)


def _total(values: Sequence[float], left: int) -> tuple[float, Interval | None]:
    if not values:
        return 0.0, None
    interval = plain_interval(values)
    if interval is not None:
        interval = Interval(low=max(0.0, interval.low * left), high=interval.high * left, level=interval.level)
    return sum(values) / len(values) * left, interval


def _range(interval: Interval | None, spec: str) -> str:
    return f" ({interval.low:{spec}} to {interval.high:{spec}})" if interval else ""
