"""Backends of generation 0.3."""

from osmosis.sdk.backend import (
    LocalBackend as LocalBackend,
)
from osmosis.sdk.harbor.backend import (
    HarborBackend as HarborBackend,
)

__all__ = [
    "HarborBackend",
    "LocalBackend",
]
