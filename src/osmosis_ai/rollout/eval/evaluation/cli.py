"""`osmosis eval -m`."""

from osmosis.cli.eval_local import (
    local_eval as local_eval,
)

__all__ = [
    "local_eval",
]
