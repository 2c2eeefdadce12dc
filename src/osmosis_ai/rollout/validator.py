"""Checks of an agent loop."""

from osmosis.sdk.validator import (
    AgentLoopValidationError as AgentLoopValidationError,
)
from osmosis.sdk.validator import (
    ValidationIssue as ValidationError,
)
from osmosis.sdk.validator import (
    ValidationResult as ValidationResult,
)
from osmosis.sdk.validator import (
    validate_agent_loop as validate_agent_loop,
)

__all__ = [
    "AgentLoopValidationError",
    "ValidationError",
    "ValidationResult",
    "validate_agent_loop",
]
