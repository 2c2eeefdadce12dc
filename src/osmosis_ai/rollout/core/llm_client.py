"""What answers an agent loop."""

from osmosis.sdk.agent_loop import (
    CompletionsResult as CompletionsResult,
)
from osmosis.sdk.agent_loop import (
    LLMClientProtocol as LLMClientProtocol,
)

__all__ = [
    "CompletionsResult",
    "LLMClientProtocol",
]
