"""What people wrote on runs, as the table keeps it."""

from __future__ import annotations

import pydantic
import sqlalchemy as sa

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.records.marks import MOST_TAGS, MarkChange, Marks


def of(run: tables.Run) -> Marks:
    return Marks.made(tags=run.tags or [], note=run.note or "", pinned=bool(run.pinned))


def tagged(tag: str) -> sa.ColumnElement[bool]:
    """Runs with this tag. A tag has nothing in it that JSON would write in another way."""
    return sa.cast(tables.Run.tags, sa.Text).contains(f'"{tag}"', autoescape=True)


def write(run: tables.Run, asked: MarkChange) -> None:
    """ValidationError when the run would have too many tags."""
    try:
        after = asked.of(of(run))
    except pydantic.ValidationError as error:
        raise ValidationError(f"a run has at most {MOST_TAGS} tags", field="tags", hint="take some away") from error
    run.tags, run.note, run.pinned = after.tags, after.note, after.pinned
