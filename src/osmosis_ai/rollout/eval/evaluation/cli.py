"""`osmosis eval -m`."""

from osmosis.cli.local_eval.command import (
    local_eval as local_eval,
)

__all__ = [
    "local_eval",
]
