"""Strands in a workflow."""

from osmosis.sdk.integrations.strands import (
    OsmosisRolloutModel as OsmosisRolloutModel,
)
from osmosis.sdk.integrations.strands import (
    OsmosisStrandsAgent as OsmosisStrandsAgent,
)

__all__ = [
    "OsmosisRolloutModel",
    "OsmosisStrandsAgent",
]
