"""The audit log, written in the transaction of the change; it outlives person and token, and holds no secret."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.records.api.accounts import AuditRow

MAX_TEXT = 500
Detail = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Actor:
    user: tables.User
    token: tables.Token
    address: str


def note(
    session: Session,
    actor: Actor | None,
    action: str,
    target: str = "",
    *,
    workspace: tables.Workspace | None = None,
    **details: Detail,
) -> None:
    shortened = {key: value[:MAX_TEXT] if isinstance(value, str) else value for key, value in details.items() if value}
    session.add(
        tables.AuditEntry(
            actor_id=actor.user.id if actor else None,
            actor=actor.user.handle if actor else "osmosis",
            token=f"{actor.token.kind}: {actor.token.name}" if actor else "schedule",
            address=actor.address if actor else "",
            action=action,
            target=target[:MAX_TEXT],
            workspace_id=workspace.id if workspace is not None else None,
            details=shortened or None,
        )
    )


def note_token(session: Session, actor: Actor, action: str, token: tables.Token, **details: Detail) -> None:
    note(session, actor, action, token.name, workspace=token.workspace, **details)


def select_entries(
    *, workspace_id: str | None = None, action: str = "", actor: str = ""
) -> sa.Select[tables.AuditEntry]:
    query = sa.select(tables.AuditEntry)
    if workspace_id is not None:
        query = query.where(tables.AuditEntry.workspace_id == workspace_id)
    if action:
        exact = tables.AuditEntry.action == action
        query = query.where(exact | tables.AuditEntry.action.startswith(f"{action}.", autoescape=True))
    if actor:
        query = query.where(tables.AuditEntry.actor == actor)
    return query.order_by(tables.AuditEntry.id.desc())


def build_entry(entry: tables.AuditEntry) -> AuditRow:
    return AuditRow.from_row(entry, details=entry.details or {})
