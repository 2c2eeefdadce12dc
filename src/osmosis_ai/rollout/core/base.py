"""The agent loop of generation 0.2."""

from osmosis.sdk.agent_loop import (
    CompletionsResult as CompletionsResult,
)
from osmosis.sdk.agent_loop import (
    LLMClientProtocol as LLMClientProtocol,
)
from osmosis.sdk.agent_loop import (
    RolloutAgentLoop as RolloutAgentLoop,
)
from osmosis.sdk.agent_loop import (
    RolloutContext as RolloutContext,
)
from osmosis.sdk.agent_loop import (
    RolloutResult as RolloutResult,
)

__all__ = [
    "CompletionsResult",
    "LLMClientProtocol",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutResult",
]
