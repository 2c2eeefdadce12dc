"""The audit log: who changed what, when, from where, in the transaction of the change itself.

An entry names things; it holds no secret, no token and no content. It outlives the person and the token it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.db import Database
from osmosis.records.contract.audit_log import AuditRow
from osmosis.records.contract.body import moment

MAX_TEXT = 500
Detail = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks for something."""

    user: tables.User
    token: tables.Token
    """With which credential."""
    address: str
    """From where: the address of the machine that asked."""


def note(
    session: Session,
    who: Actor,
    action: str,
    target: str = "",
    *,
    workspace: tables.Workspace | None = None,
    **details: Detail,
) -> None:
    """One entry: `noun.verb`, and the name of what it was done to."""
    kept = {key: value[:MAX_TEXT] if isinstance(value, str) else value for key, value in details.items() if value}
    session.add(
        tables.AuditEntry(
            actor_id=who.user.id,
            actor=who.user.handle,
            token=f"{who.token.kind}: {who.token.name}",
            address=who.address,
            action=action,
            target=target[:MAX_TEXT],
            workspace_id=workspace.id if workspace is not None else None,
            details=kept or None,
        )
    )


@contextmanager
def change(
    db: Database,
    who: Actor,
    action: str,
    target: str = "",
    *,
    workspace: tables.Workspace | None = None,
    **details: Detail,
) -> Iterator[Session]:
    """A transaction that changes something and leaves its entry: both or neither."""
    with db.write() as session:
        yield session
        note(session, who, action, target, workspace=workspace, **details)


def newest_first(*, workspace_id: str | None = None, action: str = "", actor: str = "") -> sa.Select[tables.AuditEntry]:
    """Entries of a workspace, or of the whole platform; `action` may be a noun (`run`) or whole (`run.stop`)."""
    query = sa.select(tables.AuditEntry)
    if workspace_id is not None:
        query = query.where(tables.AuditEntry.workspace_id == workspace_id)
    if action:
        whole = tables.AuditEntry.action == action
        query = query.where(whole | tables.AuditEntry.action.startswith(f"{action}.", autoescape=True))
    if actor:
        query = query.where(tables.AuditEntry.actor == actor)
    return query.order_by(tables.AuditEntry.id.desc())


def body(entry: tables.AuditEntry) -> AuditRow:
    return AuditRow(
        id=entry.id,
        timestamp=moment(entry.timestamp),
        actor=entry.actor,
        token=entry.token,
        address=entry.address,
        action=entry.action,
        target=entry.target,
        workspace_id=entry.workspace_id,
        details=entry.details or {},
    )
