"""Runs rollouts as trials of the Harbor library."""

from osmosis.sdk.harbor.backend import (
    HarborBackend as HarborBackend,
)

__all__ = [
    "HarborBackend",
]
