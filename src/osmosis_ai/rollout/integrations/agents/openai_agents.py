"""The OpenAI Agents SDK in a workflow."""

from osmosis.sdk.integrations.openai_agents import (
    OsmosisAgent as OsmosisAgent,
)
from osmosis.sdk.integrations.openai_agents import (
    OsmosisLitellmModel as OsmosisLitellmModel,
)
from osmosis.sdk.integrations.openai_agents import (
    OsmosisMemorySession as OsmosisMemorySession,
)
from osmosis.sdk.integrations.openai_agents import (
    OsmosisRolloutModel as OsmosisRolloutModel,
)

__all__ = [
    "OsmosisAgent",
    "OsmosisLitellmModel",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
]
