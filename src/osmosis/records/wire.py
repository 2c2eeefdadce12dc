"""The documented address of `RolloutInit`, for tests of agents (docs/sdk.md)."""

from osmosis.records.protocol.messages import RolloutInit

__all__ = ["RolloutInit"]
