"""Rollouts as trials of the Harbor library: the agent in a sandbox, its grading outside of the agent's reach.

Only constructing `HarborBackend` loads Harbor, and raises when it is not installed."""

from osmosis.sdk.harbor.backend import HarborBackend as HarborBackend

__all__ = ["HarborBackend"]
