"""One thing that a platform no longer needs, and whether a row still knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.run_upload import sessions

YOUNG_S = 3600.0
"""What changed less than so long ago stays: its row may be on its way."""
NOBODYS = "neither its dataset nor a run refers to it"


@dataclass(frozen=True, slots=True)
class Waste:
    """One thing that can go."""

    kind: str
    what: str
    """Below the data folder."""
    why: str
    size: int
    """Bytes; of log lines and old rows, how many there are."""
    remove: Callable[[], bool] = field(repr=False, compare=False)
    """False when it turned out to be needed."""


def has(table: type[tables.Run] | type[tables.BaseModel]) -> Callable[[Session, str], bool]:
    return lambda session, name: session.get(table, name) is not None


def has_repository(session: Session, name: str) -> bool:
    """Of its folder or its lock."""
    return session.get(tables.Repository, name.partition(".")[0]) is not None


def upload_is_open(session: Session, name: str) -> bool:
    upload = session.get(tables.Upload, name)
    return upload is not None and upload.status in ("open", "processing")


def import_is_open(session: Session, name: str) -> bool:
    row = session.get(tables.Import, name)
    return row is not None and (row.status == sessions.UPLOADING or row.run_id is not None)
