"""Stepping through rows."""

from osmosis.classic.interactive import (
    InteractiveLLMClient as InteractiveLLMClient,
)
from osmosis.classic.interactive import (
    InteractiveRunner as InteractiveRunner,
)
from osmosis.classic.interactive import (
    InteractiveStep as InteractiveStep,
)

__all__ = [
    "InteractiveLLMClient",
    "InteractiveRunner",
    "InteractiveStep",
]
