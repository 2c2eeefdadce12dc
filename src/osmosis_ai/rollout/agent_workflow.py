"""The workflow of generation 0.3."""

from osmosis.sdk.workflow import (
    AgentWorkflow as AgentWorkflow,
)
from osmosis.sdk.workflow import (
    AgentWorkflowOutput as AgentWorkflowOutput,
)

__all__ = [
    "AgentWorkflow",
    "AgentWorkflowOutput",
]
