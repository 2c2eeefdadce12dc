"""What a person said about one rollout: a label, a score, a comment. Keyed as rollouts are."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import Field

from .base import Record, utc_now

RIGHT, WRONG, UNSURE = "right", "wrong", "unsure"
LABELS = (RIGHT, WRONG, UNSURE)
"""Those that are offered; a person may write another one."""
LONGEST_LABEL = 60
LONGEST_COMMENT = 4_000


class Annotation(Record):
    """One judgement of one rollout by one person. Of what a person said about a rollout, the newest counts."""

    step: int = Field(default=0, ge=0)
    row_index: int = Field(ge=0)
    attempt: int = Field(ge=0)
    row_key: str | None = None
    rollout_id: str | None = None
    """Which rollout was looked at: after a retry another one has its key."""
    label: str = Field(default="", max_length=LONGEST_LABEL)
    score: float | None = None
    comment: str = Field(default="", max_length=LONGEST_COMMENT)
    author: str
    created_at: datetime = Field(default_factory=utc_now)

    @property
    def empty(self) -> bool:
        """Takes back what was said before."""
        return not self.label and self.score is None and not self.comment

    @property
    def place(self) -> tuple[int, int, int]:
        """Step, row index and attempt."""
        return (self.step, self.row_index, self.attempt)

    @property
    def identity(self) -> tuple[object, ...]:
        """The same for the same words, however often they travelled."""
        return (self.place, self.author, self.created_at, self.label, self.score, self.comment)

    def passes(self, threshold: float) -> bool | None:
        """Whether the person would let it pass; None when that was not said."""
        if self.label in (RIGHT, WRONG):
            return self.label == RIGHT
        return None if self.score is None else self.score >= threshold


def newest(said: Iterable[Annotation]) -> list[Annotation]:
    """What counts, of what was said in order of time: one by each person about each rollout, by rollout."""
    found: dict[tuple[tuple[int, int, int], str], Annotation] = {}
    for one in said:
        found[one.place, one.author] = one
    return sorted((one for one in found.values() if not one.empty), key=lambda one: (one.place, one.author))
