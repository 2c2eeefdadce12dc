import math
from dataclasses import dataclass
from typing import Annotated, TypedDict, TypeVar

import sqlalchemy as sa
from fastapi import Depends
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.records.api.body import LogEntry, LogPage

MAX_LIMIT = 50
MAX_LOG_LIMIT = 200
MAX_ROLLOUTS = 200
MAX_PLACE = 2**63 - 1
T = TypeVar("T")
Line = TypeVar("Line", tables.RunLog, tables.DatasetLog)


class PagePlace(TypedDict):
    total_count: int
    has_more: bool
    next_offset: int | None


@dataclass(frozen=True, slots=True)
class PageRange:
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
        end = self.offset + count
        more = end < total and bool(count)
        return {"total_count": total, "has_more": more, "next_offset": end if more else None}

    def fetch(self, session: Session, query: sa.Select[T]) -> tuple[list[T], int]:
        rows = list(session.scalars(query.limit(self.limit).offset(self.offset)))
        return rows, count_of(session, query)


def _page(limit: int = MAX_LIMIT, offset: int = 0) -> PageRange:
    return PageRange(limit, offset)


def _long_page(limit: int = MAX_LIMIT, offset: int = 0) -> PageRange:
    return PageRange(limit, offset, MAX_ROLLOUTS)


PageDep = Annotated[PageRange, Depends(_page)]
LongPageDep = Annotated[PageRange, Depends(_long_page)]


def fetch_numbered(session: Session, query: sa.Select[T], at: int, size: int = 50) -> tuple[list[T], dict[str, int]]:
    total = count_of(session, query)
    pages = max(1, math.ceil(total / size))
    at = min(max(1, at), pages)
    rows = list(session.scalars(query.limit(size).offset((at - 1) * size)))
    return rows, {"total": total, "at": at, "pages": pages}


@dataclass(frozen=True, slots=True)
class LogSlice:
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
        """Return a page of a log, oldest first; a follower continues at `latest_cursor`."""
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


LogSliceDep = Annotated[LogSlice, Depends()]


def log_body(row: tables.RunLog | tables.DatasetLog) -> LogEntry:
    details: dict[str, dict[str, object]] = {"details": row.details} if row.details else {}
    return LogEntry(timestamp=row.timestamp.isoformat(), level=row.level, step=row.step, message=row.message, **details)
