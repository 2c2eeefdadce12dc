"""A boundary around a process: what it may read, write, reach and use up, and that nothing of it is left afterwards.

`Policy` says what is allowed, `probe` what this machine can enforce, `run` runs a command to its end and `start` starts
one that lives on. Every process of ours that touches what somebody else wrote goes through here: the rollout server and
the building of its environment, parsers of uploaded files, and the commands of tools.
"""

from .box import Box, start
from .limited_run import run
from .policy import Abilities, Level, Limits, Network, Policy
from .probe import probe

__all__ = [
    "Abilities",
    "Box",
    "Level",
    "Limits",
    "Network",
    "Policy",
    "probe",
    "run",
    "start",
]
