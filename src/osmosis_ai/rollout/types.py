"""Configs and samples of generation 0.3."""

from osmosis.sdk.types import (
    AgentWorkflowConfig as AgentWorkflowConfig,
)
from osmosis.sdk.types import (
    ConcurrencyConfig as ConcurrencyConfig,
)
from osmosis.sdk.types import (
    GraderConfig as GraderConfig,
)
from osmosis.sdk.types import (
    RolloutSample as RolloutSample,
)

__all__ = [
    "AgentWorkflowConfig",
    "ConcurrencyConfig",
    "GraderConfig",
    "RolloutSample",
]
