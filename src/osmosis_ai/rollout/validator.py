"""Checks of an agent loop."""

from osmosis.serve.server.validator import (
    AgentLoopValidationError as AgentLoopValidationError,
)
from osmosis.serve.server.validator import (
    ValidationIssue as ValidationError,
)
from osmosis.serve.server.validator import (
    ValidationResult as ValidationResult,
)
from osmosis.serve.server.validator import (
    validate_agent_loop as validate_agent_loop,
)

__all__ = [
    "AgentLoopValidationError",
    "ValidationError",
    "ValidationResult",
    "validate_agent_loop",
]
