"""The reward and rubric decorators."""

from osmosis.sdk.rewards import (
    osmosis_reward as osmosis_reward,
)
from osmosis.sdk.rubrics import (
    osmosis_rubric as osmosis_rubric,
)

__all__ = [
    "osmosis_reward",
    "osmosis_rubric",
]
