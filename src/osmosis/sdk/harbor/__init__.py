"""Rollouts as trials of the Harbor library, which only constructing `HarborBackend` loads."""

from osmosis.sdk.harbor.backend import HarborBackend as HarborBackend

__all__ = ["HarborBackend"]
