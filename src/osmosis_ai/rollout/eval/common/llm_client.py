"""Any model for an agent loop."""

from osmosis.classic.llm_client import (
    ExternalLLMClient as ExternalLLMClient,
)

__all__ = [
    "ExternalLLMClient",
]
