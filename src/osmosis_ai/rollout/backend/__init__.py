"""Backends of generation 0.3."""

from osmosis.sdk.backend import (
    LocalBackend as LocalBackend,
)

__all__ = [
    "LocalBackend",
]
