"""The contexts of generation 0.3."""

from osmosis.sdk.context import (
    AgentWorkflowContext as AgentWorkflowContext,
)
from osmosis.sdk.context import (
    GraderContext as GraderContext,
)
from osmosis.sdk.context import (
    SampleSource as SampleSource,
)
from osmosis.sdk.context import (
    WorkflowRollout as RolloutContext,
)
from osmosis.sdk.context import (
    get_rollout_context as get_rollout_context,
)

__all__ = [
    "AgentWorkflowContext",
    "GraderContext",
    "RolloutContext",
    "SampleSource",
    "get_rollout_context",
]
