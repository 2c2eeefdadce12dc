"""Rollouts as trials of the Harbor library: the agent in a sandbox, its grading outside of the agent's reach.

`backend.py` has `HarborBackend`; `inside.py` is what runs in the sandbox; `agents.py` is what Harbor calls. Importing
this package loads no Harbor: only constructing the backend does, and says what to install when it is missing.
"""

from .backend import HarborBackend as HarborBackend

__all__ = ["HarborBackend"]
