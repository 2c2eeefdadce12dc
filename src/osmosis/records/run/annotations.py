import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from osmosis.records.base import Record, utc_now

ANNOTATIONS = "annotations.jsonl"
RIGHT, WRONG, UNSURE = "right", "wrong", "unsure"
LABELS = (RIGHT, WRONG, UNSURE)  # Labels that are offered; others are allowed
LONGEST_LABEL = 60
LONGEST_COMMENT = 4_000


class Annotation(Record):
    step: int = Field(default=0, ge=0)
    row_index: int = Field(ge=0)
    attempt: int = Field(ge=0)
    row_key: str | None = None
    rollout_id: str | None = None
    """The rollout that was judged: a retry has another one under the same key."""
    label: str = Field(default="", max_length=LONGEST_LABEL)
    score: float | None = None
    comment: str = Field(default="", max_length=LONGEST_COMMENT)
    author: str
    created_at: datetime = Field(default_factory=utc_now)

    @property
    def empty(self) -> bool:
        return not self.label and self.score is None and not self.comment

    @property
    def place(self) -> tuple[int, int, int]:
        return (self.step, self.row_index, self.attempt)

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.place, self.author, self.created_at, self.label, self.score, self.comment)

    def passes(self, threshold: float) -> bool | None:
        if self.label in (RIGHT, WRONG):
            return self.label == RIGHT
        return None if self.score is None else self.score >= threshold


def keep_newest(annotations: Iterable[Annotation]) -> list[Annotation]:
    latest: dict[tuple[tuple[int, int, int], str], Annotation] = {}
    for annotation in annotations:
        latest[annotation.place, annotation.author] = annotation
    filled = (annotation for annotation in latest.values() if not annotation.empty)
    return sorted(filled, key=lambda annotation: (annotation.place, annotation.author))


TAG = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}\Z")
TAG_RULE = "1 to 64 letters, digits, . _ : / and -, starting with a letter or digit"
MOST_TAGS = 20
LONGEST_NOTE = 4_000


def check_tag(text: str) -> str:
    if not TAG.match(text):
        raise ValueError(f"{text[:70]!r} is not a tag: {TAG_RULE}")
    return text


Tags = Annotated[list[Annotated[str, AfterValidator(check_tag)]], Field(max_length=MOST_TAGS)]


class Marks(Record):
    tags: Tags = Field(default_factory=list)
    """In order, each once; runs that share one form a set."""
    note: str = Field(default="", max_length=LONGEST_NOTE)
    pinned: bool = False


class MarkChange(Record):
    """A change of marks; None leaves a field as it is."""

    name: str | None = None
    tags: Tags | None = None
    add_tags: Tags = Field(default_factory=list)
    remove_tags: list[str] = Field(default_factory=list)
    note: str | None = Field(default=None, max_length=LONGEST_NOTE)
    pinned: bool | None = None

    def of(self, marks: Marks) -> Marks:
        """Return the changed marks; raise pydantic's ValidationError for too many tags."""
        tags = marks.tags if self.tags is None else self.tags
        fields = [tag for tag in unique([*tags, *self.add_tags]) if tag not in self.remove_tags]
        note = marks.note if self.note is None else self.note.strip()
        return Marks(tags=fields, note=note, pinned=marks.pinned if self.pinned is None else self.pinned)


def unique(tags: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(tags))
