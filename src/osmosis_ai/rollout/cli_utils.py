"""Errors of commands, and loading agents."""

from osmosis.engine.agent import (
    load_agent as load_agent,
)
from osmosis.errors import (
    OsmosisError as CLIError,
)

__all__ = [
    "CLIError",
    "load_agent",
]
