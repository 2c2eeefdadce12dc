"""A comparison that goes on until it is decided: the looks that were planned, and what those made so far found.

Kept beside run B. The plan is made once, before anything is spent, and no result changes it: the error rate of the test
stands on that.
"""

from __future__ import annotations

from pydantic import Field

from .base import Record


class Look(Record):
    """One look at the two runs."""

    rollouts: int = Field(ge=1)
    """Of each run by then."""
    limit: int | None = None
    """How many rows of the dataset by then; None: the rows that the runs have."""
    attempts: int = Field(ge=1)
    """At each row by then."""
    level: float
    """The two-sided p-value below which this look ends the test."""
    done: bool = False
    p_value: float | None = None
    """None: not made, or too few rows to tell."""
    difference: float | None = None
    """B minus A."""


class Decision(Record):
    """The test of run B against run A, for one score."""

    a: str
    b: str
    score: str
    max_rollouts: int
    """That both runs together may have more than at the beginning."""
    max_cost_usd: float | None = None
    """That they may cost more than at the beginning."""
    rollouts_before: int
    """Of both together, at the beginning."""
    cost_before: float | None = None
    looks: list[Look]
    verdict: str | None = None
    """`better` or `worse`, of B; None: not decided."""

    @property
    def next_look(self) -> int | None:
        """The index of the look that is to be made; None when the test is over."""
        if self.verdict is not None:
            return None
        return next((i for i, look in enumerate(self.looks) if not look.done), None)

    @property
    def last_made(self) -> Look | None:
        return next((look for look in reversed(self.looks) if look.done), None)
