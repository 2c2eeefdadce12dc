"""A boundary around a process: limits on what it may read, write, reach and use up. `Policy` is what is allowed,
`probe` finds what this machine can enforce, `run` runs a command to its end and `start` starts one that lives on. Every
process that touches foreign files goes through here: the rollout server and the building of its environment, parsers of
uploaded files, and the commands of tools."""

from osmosis.sandbox.capabilities import probe
from osmosis.sandbox.policy import Abilities, Level, Limits, Network, Policy
from osmosis.sandbox.process import Box, run, start

__all__ = ["Abilities", "Box", "Level", "Limits", "Network", "Policy", "probe", "run", "start"]
