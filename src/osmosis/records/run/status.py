from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Literal

from osmosis.errors import UsageError


class RunStatus(str, Enum):
    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        return self in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED)


def ended_by_limit(status: str, category: str | None) -> bool:
    return status == RunStatus.STOPPED.value and category in ("budget", "timeout")  # of `rollout.Category`


RunKind = Literal["eval", "training", "benchmark", "optimize"]
"""`benchmark`: several evaluations under one name; `optimize`: one that improves texts. Only the first two have rows in
the table of runs."""
JobKind = Literal["eval", "training", "serving", "merge"]
"""A run, a model that is served until it is stopped, or the merge of an adapter into its base model."""
NOUNS: Mapping[RunKind, str] = {"eval": "eval", "training": "train", "benchmark": "benchmark", "optimize": "eval"}
"""How the commands of a kind of run begin."""

LATEST = "latest"
SHORTEST = 3


def match_name(name: str, newest_first: Sequence[str]) -> str | None:
    if name in newest_first:
        return name
    if name == LATEST and newest_first:
        return newest_first[0]
    matches = sorted(candidate for candidate in newest_first if len(name) >= SHORTEST and candidate.startswith(name))
    if len(matches) > 1:
        raise UsageError(f"{name!r} could be {', '.join(matches[:8])}", hint="write more of the name")
    return matches[0] if matches else None
