"""The client of a trainer."""

from osmosis.sdk.agent_loop import (
    CompletionsResult as CompletionsResult,
)
from osmosis.serve.server.trainer_client import (
    OsmosisLLMClient as OsmosisLLMClient,
)

__all__ = [
    "CompletionsResult",
    "OsmosisLLMClient",
]
