"""`marks.json`: the tags, the note and the pin of a local run, beside its journal; and giving the run another name.

What the run did is not touched. Its name is its folder's, so a run that goes on keeps it.
"""

from __future__ import annotations

from pathlib import Path

import pydantic

from osmosis.base.files import write_json
from osmosis.base.locks import locked
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, ValidationError
from osmosis.records.marks import MOST_TAGS, MarkChange, Marks

from .request import check_name

FILE = "marks.json"


def marks_of(folder: Path) -> Marks:
    """What is written on the run in this folder; nothing where nothing is, or where it cannot be read."""
    try:
        return Marks.model_validate_json((folder / FILE).read_bytes())
    except (FileNotFoundError, pydantic.ValidationError):
        return Marks()


def mark(folder: Path, asked: MarkChange) -> Path:
    """Changes what is written on the run; where it is afterwards. Raises Conflict when its new name is taken."""
    with locked(folder / ".marks.lock"):
        try:
            after = asked.of(marks_of(folder))
        except pydantic.ValidationError as error:
            hint = "take some away with --remove"
            raise ValidationError(f"a run has at most {MOST_TAGS} tags", field="tags", hint=hint) from error
        if after != marks_of(folder):
            write_json(folder / FILE, after.to_dict())
    if asked.name is None or asked.name == folder.name:
        return folder
    return _renamed(folder, check_name(asked.name, "the new name"))


def _renamed(folder: Path, name: str) -> Path:
    there, journal = folder.with_name(name), Journal(folder)
    journal.lock()
    try:
        if there.exists():
            raise Conflict(f"there is already a run named {name}", hint="choose another name")
        folder.rename(there)
    finally:
        journal.close()
    return there
