"""What a pilot says about the rest of a run."""

import random
from heapq import heapreplace

import pytest

from osmosis.metrics.planning import forecast, predicted_time
from osmosis.records.run.rollout import Rollout, RolloutStatus, Usage


def test_a_forecast_scales_and_has_an_interval():
    def one(tokens):
        usage = Usage(prompt_tokens=tokens, cost_usd=tokens / 1000)
        return Rollout(
            rollout_id="r", row_index=0, attempt=0, status=RolloutStatus.SUCCESS, usage=usage, duration_ms=500
        )

    found = forecast([one(t) for t in (80, 100, 120, 90, 110)], left=100, concurrency=10)
    assert found.tokens == pytest.approx(10_000)
    assert found.cost_usd == pytest.approx(10.0)
    assert found.cost_interval.low < 10 < found.cost_interval.high
    assert found.seconds == pytest.approx(5.0)
    assert found.seconds_interval.high > 5.5  # the last one may be a straggler
    assert "100 rollouts left" in found.line()
    assert found.cost_interval.level == 0.95


def test_the_interval_is_of_the_total_and_needs_a_pilot_of_five():
    def of(costs, **more):
        made = [Rollout(rollout_id="r", row_index=i, attempt=0, status="success", usage=Usage(cost_usd=c))
                for i, c in enumerate(costs)]  # fmt: skip
        return forecast(made, concurrency=1, **more)

    assert of([1.0, 2.0, 3.0, 4.0], left=10).cost_interval is None
    varied = [1.0, 2.0, 3.0, 4.0] * 5
    many, few = of(varied, left=10_000).cost_interval, of(varied, left=10).cost_interval
    assert (few.high - few.low) / 10 > (many.high - many.low) / 10_000
    repeated, apart = of(varied, left=100, attempts=10).cost_interval, of(varied, left=100).cost_interval
    assert repeated.high - repeated.low > 1.1 * (apart.high - apart.low)  # ten rows, not a hundred
    assert of([0.0] * 9, left=10).cost_interval is None


@pytest.mark.parametrize("lanes", [8, 32, 64])
def test_the_time_of_a_run_holds_its_stragglers(lanes):
    source, hits = random.Random(lanes), 0
    for _ in range(100):
        pilot, *rest = ([source.lognormvariate(0, 1) for _ in range(size)] for size in (20, 200))
        free = [0.0] * lanes
        for duration in rest[0]:
            heapreplace(free, free[0] + duration)
        _, interval = predicted_time(pilot, 200, lanes, 1)
        hits += interval.low <= max(free) <= interval.high
    assert hits >= 90
