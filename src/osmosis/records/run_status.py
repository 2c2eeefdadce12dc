"""What a run, or the job of one, is doing: the one word by which people and programs tell it.

Light on purpose: every command that shows figures needs it, and few of them the records of a run.
"""

from __future__ import annotations

from enum import Enum

from .rollout import Category


class RunStatus(str, Enum):
    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        return self in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED)


def at_its_limit(status: str, category: str | None) -> bool:
    """Whether a run with this status, and a failure of this category beside it, ended by its own limit: of cost, of
    tokens or of time. Nothing failed then."""
    return status == RunStatus.STOPPED.value and category in (Category.BUDGET.value, Category.TIMEOUT.value)
