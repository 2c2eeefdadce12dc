"""The kinds of runs and of jobs, and what the command line calls them. What a run has and does is in `run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

RunKind = Literal["eval", "training"]
"""What people submit."""
JobKind = Literal["eval", "training", "serving", "merge"]
"""What a job does: a run, a model that is served until it is stopped, or an adapter merged into its base model."""
NOUNS: Mapping[RunKind, str] = {"eval": "eval", "training": "train"}
"""What the command line calls a kind of run."""
