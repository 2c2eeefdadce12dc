"""What people write on a run: tags, a note, a pin; and the changes that they ask for. A run is judged by none of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from .base import Record

TAG = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}$")
TAG_RULE = "1 to 64 letters, digits, . _ : / and -, starting with a letter or digit"
MOST_TAGS = 20
LONGEST_NOTE = 4_000


def tag_of(text: str) -> str:
    """A tag as it is kept. ValueError says what a tag is."""
    if not TAG.match(text):
        raise ValueError(f"{text[:70]!r} is not a tag: {TAG_RULE}")
    return text


Tag = Annotated[str, AfterValidator(tag_of)]
Tags = Annotated[list[Tag], Field(max_length=MOST_TAGS)]


class Marks(Record):
    """What is written on one run."""

    tags: Tags = Field(default_factory=list)
    """Each once, in the order in which they were given; runs that share one are a set."""
    note: str = Field(default="", max_length=LONGEST_NOTE)
    pinned: bool = False
    """Stands before the others in lists."""


class MarkChange(Record):
    """What should be different; what is left out stays as it is."""

    name: str | None = None
    """The run is called so from now on."""
    tags: Tags | None = None
    """All tags there should be."""
    add_tags: Tags = Field(default_factory=list)
    remove_tags: list[str] = Field(default_factory=list)
    note: str | None = Field(default=None, max_length=LONGEST_NOTE)
    """Empty takes it away."""
    pinned: bool | None = None

    def of(self, marks: Marks) -> Marks:
        """The marks afterwards. Raises pydantic's ValidationError when there are too many tags."""
        tags = marks.tags if self.tags is None else self.tags
        kept = [tag for tag in unique([*tags, *self.add_tags]) if tag not in self.remove_tags]
        note = marks.note if self.note is None else self.note.strip()
        return Marks(tags=kept, note=note, pinned=marks.pinned if self.pinned is None else self.pinned)


def unique(tags: Iterable[str]) -> list[str]:
    """Each once."""
    return list(dict.fromkeys(tags))
