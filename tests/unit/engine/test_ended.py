"""What a workflow leaves becomes the same rollout, whether it ran here or on a rollout server."""

from __future__ import annotations

import pytest

from osmosis.engine.rollout_model import REWARD, add_sample
from osmosis.records.protocol.messages import WireSample
from osmosis.records.run.rollout import Rollout, RolloutStatus
from osmosis.sdk.types import RolloutSample


@pytest.mark.parametrize("kind", [WireSample, RolloutSample])
def test_a_sample_becomes_measurements_fields_and_a_reward(kind: type) -> None:
    rollout = Rollout(rollout_id="r", row_index=0, attempt=0, status=RolloutStatus.SUCCESS)
    sample = kind(messages=[], reward=0.5, metrics={"turns": 2, "found": True, "why": "text"}, extra_fields={"a": 1})
    add_sample(rollout, sample, graded=True)
    assert rollout.metrics == {"turns": 2.0, "found": 1.0}
    assert rollout.info == {"a": 1}
    assert rollout.scores[REWARD].value == 0.5
    assert rollout.status is RolloutStatus.SUCCESS


@pytest.mark.parametrize(("graded", "status"), [(True, RolloutStatus.SKIPPED), (False, RolloutStatus.FAILED)])
def test_only_what_was_graded_is_left_out(graded: bool, status: RolloutStatus) -> None:
    first = RolloutStatus.SUCCESS if graded else RolloutStatus.FAILED
    rollout = Rollout(rollout_id="r", row_index=0, attempt=0, status=first)
    add_sample(rollout, WireSample(reward=1.0, remove_sample=True), graded=graded)
    assert rollout.status is status
    assert not rollout.scores
