"""Runs rollouts in this process."""

from osmosis.sdk.backend import (
    ExecutionResult as ExecutionResult,
)
from osmosis.sdk.backend import (
    LocalBackend as LocalBackend,
)

__all__ = [
    "ExecutionResult",
    "LocalBackend",
]
