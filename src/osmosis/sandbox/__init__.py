"""A boundary around a process that touches foreign files: `Policy` is what is allowed, `probe` finds what this machine
can enforce, `run` runs a command to its end and `start` starts one that lives on."""

from osmosis.sandbox.namespaces import probe
from osmosis.sandbox.policy import Abilities, Level, Limits, Network, Policy
from osmosis.sandbox.process import Box, run, start

__all__ = ["Abilities", "Box", "Level", "Limits", "Network", "Policy", "probe", "run", "start"]
