"""Errors of commands."""

from osmosis.errors import (
    OsmosisError as CLIError,
)

__all__ = [
    "CLIError",
]
