"""Rows that had their day: tokens and device codes that work no more, and events of syncs long ago.

What somebody may still ask for stays: a token while one that was made with it works, and of each branch the newest
event that succeeded, because it says where the branch is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, get_args

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from osmosis.platform import tables
from osmosis.platform.db import changed_by
from osmosis.records.run import SyncStatus

Kind = Literal["tokens", "device codes", "sync events"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TOKENS_FOR = timedelta(days=30)
CODES_FOR = timedelta(days=1)
EVENTS_FOR = timedelta(days=90)
_TABLES: dict[Kind, type[tables.Token] | type[tables.DeviceCode] | type[tables.SyncEvent]] = {
    "tokens": tables.Token,
    "device codes": tables.DeviceCode,
    "sync events": tables.SyncEvent,
}
WHY: dict[Kind, str] = {
    "tokens": f"expired or revoked for {TOKENS_FOR.days} days",
    "device codes": f"expired for {CODES_FOR.days} day",
    "sync events": f"older than {EVENTS_FOR.days} days, and not the last of their branch",
}


def count(session: Session, kind: Kind, now: datetime) -> int:
    """How many there are."""
    return session.scalar(sa.select(sa.func.count()).select_from(_old(kind, now).subquery())) or 0


def remove(session: Session, kind: Kind, now: datetime) -> int:
    """How many went. Of tokens those go first that made no other: what is left goes with the next sweep."""
    table = _TABLES[kind]
    return changed_by(session, sa.delete(table).where(table.id.in_(_old(kind, now))))


def _old(kind: Kind, now: datetime) -> sa.Select[str]:
    if kind == "device codes":
        return sa.select(tables.DeviceCode.id).where(tables.DeviceCode.expires_at < now - CODES_FOR)
    return _tokens(now - TOKENS_FOR) if kind == "tokens" else _events(now - EVENTS_FOR)


def _tokens(before: datetime) -> sa.Select[str]:
    token, child = tables.Token, aliased(tables.Token)
    return sa.select(token.id).where(
        sa.or_(token.expires_at < before, token.revoked_at < before),
        ~sa.exists().where(child.parent_id == token.id),
        ~sa.exists().where(tables.Worker.token_id == token.id),
    )


def _events(before: datetime) -> sa.Select[str]:
    event, later = tables.SyncEvent, aliased(tables.SyncEvent)
    success = SyncStatus.SUCCESS.value
    newer = sa.exists().where(
        later.repository_id == event.repository_id,
        later.branch == event.branch,
        later.status == success,
        later.finished_at > event.finished_at,
    )
    return sa.select(event.id).where(event.created_at < before, sa.or_(event.status != success, newer))
