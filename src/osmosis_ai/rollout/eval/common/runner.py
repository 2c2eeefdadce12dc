"""Runners of local runs."""

from osmosis.classic.runner import (
    LocalBatchResult as LocalBatchResult,
)
from osmosis.classic.runner import (
    LocalRolloutRunner as LocalRolloutRunner,
)
from osmosis.classic.runner import (
    LocalRunResult as LocalRunResult,
)
from osmosis.classic.runner import (
    validate_tools as validate_tools,
)

__all__ = [
    "LocalBatchResult",
    "LocalRolloutRunner",
    "LocalRunResult",
    "validate_tools",
]
