"""The rollout server of generation 0.2."""

from osmosis.serve.server.v02 import (
    create_app as create_app,
)

__all__ = [
    "create_app",
]
