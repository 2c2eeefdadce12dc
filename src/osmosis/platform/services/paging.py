"""One page of a list or a log: the part that was asked for, and where the next one starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.records.contract.body import LogEntry, LogPage, moment

MAX_LIMIT = 50
MAX_LOG_LIMIT = 200
MAX_PLACE = 2**63 - 1
"""The largest number that a database takes."""
T = TypeVar("T")
Line = TypeVar("Line", tables.RunLog, tables.DatasetLog)


class PagePlace(TypedDict):
    """Where a page stands in its list: the keys of `records.contract.body.Page`."""

    total_count: int
    has_more: bool
    next_offset: int | None


class Listing(Generic[T]):
    """A list that is asked for often: its statements are built once, which takes longer than asking. What is listed
    stands in the query as `bindparam`s, whose values come with each question."""

    def __init__(self, query: sa.Select[T]) -> None:
        limit, offset = (sa.bindparam(name, type_=sa.Integer) for name in ("page_limit", "page_offset"))
        self.rows = query.limit(limit).offset(offset)
        self.count = query.order_by(None).with_only_columns(sa.func.count(), maintain_column_froms=True)


@dataclass(frozen=True, slots=True)
class PageRange:
    """What part of a list is wanted. ValidationError at construction when out of range."""

    limit: int = MAX_LIMIT
    offset: int = 0
    top: int = MAX_LIMIT

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= self.top:
            raise ValidationError(f"limit must be between 1 and {self.top}", field="limit")
        if self.offset < 0:
            raise ValidationError("offset must not be negative", field="offset")
        if self.offset > MAX_PLACE:
            raise ValidationError("offset is too large", field="offset")

    def place(self, count: int, total: int) -> PagePlace:
        """What the body says around `count` rows of `total`."""
        end = self.offset + count
        more = end < total and bool(count)
        return {"total_count": total, "has_more": more, "next_offset": end if more else None}

    def fetch(self, session: Session, query: sa.Select[T]) -> tuple[list[T], int]:
        """The rows of this page and how many there are in all."""
        rows = list(session.scalars(query.limit(self.limit).offset(self.offset)))
        return rows, count_of(session, query)

    def of(self, session: Session, listing: Listing[T], **values: object) -> tuple[list[T], int]:
        """`fetch` of a list whose statements are built."""
        rows = session.scalars(listing.rows, {**values, "page_limit": self.limit, "page_offset": self.offset})
        return list(rows), session.scalar(listing.count, values) or 0


@dataclass(frozen=True, slots=True)
class LogSlice:
    """What part of a log is wanted: `older` than the cursor (or the newest), or `newer` than it."""

    limit: int = MAX_LIMIT
    direction: str = "older"
    cursor: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_LOG_LIMIT:
            raise ValidationError(f"limit must be between 1 and {MAX_LOG_LIMIT}", field="limit")
        if self.direction not in ("older", "newer"):
            raise ValidationError("direction must be 'older' or 'newer'", field="direction")
        if self.cursor and not (self.cursor.isascii() and self.cursor.isdigit() and len(self.cursor) < 19):
            raise ValidationError("not a cursor from an earlier answer", field="cursor")

    def fetch(self, session: Session, table: type[Line], owner: sa.ColumnElement[bool]) -> LogPage:
        """A page of a log table, oldest first. `latest_cursor` is where a follower continues."""
        query = sa.select(table).where(owner)
        position = int(self.cursor) if self.cursor else None
        older = self.direction == "older"
        if position is not None:
            query = query.where(table.id < position if older else table.id > position)
        query = query.order_by(table.id.desc() if older else table.id).limit(self.limit + 1)
        rows = list(session.scalars(query))
        more = len(rows) > self.limit
        rows = rows[: self.limit]
        if older:
            rows.reverse()
        edge = (rows[0].id if older else rows[-1].id) if more else None
        latest = str(rows[-1].id) if rows else (self.cursor if not older else None)
        cursor = str(edge) if edge is not None else None
        return LogPage(logs=[log_body(row) for row in rows], next_cursor=cursor, latest_cursor=latest)


def log_body(row: tables.RunLog | tables.DatasetLog) -> LogEntry:
    """One line as clients read it."""
    details: dict[str, dict[str, object]] = {"details": row.details} if row.details else {}
    return LogEntry(timestamp=moment(row.timestamp), level=row.level, step=row.step, message=row.message, **details)
