"""What a pilot says about the rest of a run."""

import pytest

from osmosis.metrics.forecast import forecast
from osmosis.records.rollout import Rollout, RolloutStatus, Usage


def test_a_forecast_scales_and_has_an_interval():
    def one(tokens):
        usage = Usage(prompt_tokens=tokens, cost_usd=tokens / 1000)
        return Rollout(
            rollout_id="r", row_index=0, attempt=0, status=RolloutStatus.SUCCESS, usage=usage, duration_ms=500
        )

    found = forecast([one(t) for t in (80, 100, 120)], left=100, concurrency=10)
    assert found.tokens == pytest.approx(10_000)
    assert found.cost_usd == pytest.approx(10.0)
    assert found.cost_interval.low < 10 < found.cost_interval.high
    assert found.seconds == pytest.approx(5.0)
    assert "100 rollouts left" in found.line()
