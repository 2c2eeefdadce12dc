"""Rollout servers of people and workspaces. A server belongs to the person who registered it, and the members of its
workspace, if any, see it. Its API key is sealed and sent only to the server itself."""

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.rollout_servers.probe import ProbeResult, ProbeTarget
from osmosis.platform.vault import Sealed, Vault
from osmosis.records.api.workers import ServerRow
from osmosis.records.base import utc_now

SILENT_AFTER = timedelta(minutes=3)
"""A server sends a heartbeat every minute; after this long without one it is shown as gone."""
FORGOTTEN_AFTER = timedelta(days=1)
MAX_NAME = 200


def check_name(name: str) -> None:
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        message = f"agent_loop_name must be a printable text of 1 to {MAX_NAME} characters"
        raise ValidationError(message, field="agent_loop_name")


def register(
    session: Session, vault: Vault, owner: tables.User, workspace_id: str | None, name: str, target: ProbeTarget,
    health: ProbeResult,
) -> tables.RolloutServer:  # fmt: skip
    check_name(name)
    now = utc_now()
    session.get_one(tables.User, owner.id, with_for_update=True)  # one registration of a person at a time
    table = tables.RolloutServer
    same = sa.and_(table.owner_id == owner.id, table.host == target.host, table.port == target.port)
    session.execute(sa.delete(table).where(sa.or_(same, table.last_seen < now - FORGOTTEN_AFTER)))
    row = table(
        id=tables.new_id(),
        owner_id=owner.id,
        workspace_id=workspace_id,
        host=target.host,
        port=target.port,
        agent_loop_name=name,
        last_seen=now,
        created_at=now,
    )
    if target.api_key:
        sealed = vault.seal(target.api_key, _about(row))
        row.key_id, row.nonce, row.ciphertext = sealed.key_id, sealed.nonce, sealed.ciphertext
    row.status, row.error = health.status, health.error
    session.add(row)
    session.flush()
    return row


def heartbeat(session: Session, user: tables.User, server_id: str) -> tables.RolloutServer:
    """Store a heartbeat; raise NotFound for a removed server, so that it registers again."""
    row = _own(session, user, server_id)
    row.last_seen = utc_now()
    return row


def target_of(vault: Vault, row: tables.RolloutServer) -> ProbeTarget:
    key = None
    if row.key_id is not None and row.nonce is not None and row.ciphertext is not None:
        key = vault.unseal(Sealed(row.key_id, row.nonce, row.ciphertext), _about(row))
    return ProbeTarget(row.host, row.port, key)


def note_health(session: Session, server_id: str, health: ProbeResult) -> None:
    row = session.get(tables.RolloutServer, server_id, with_for_update=True)
    if row is not None:
        row.status, row.error = health.status, health.error


def remove(session: Session, user: tables.User, server_id: str) -> None:
    session.delete(_own(session, user, server_id))


def select_servers(user: tables.User, workspace: tables.Workspace | None) -> sa.Select[tables.RolloutServer]:
    table = tables.RolloutServer
    mine: sa.ColumnElement[bool] = table.owner_id == user.id
    if workspace is not None:
        mine = sa.or_(table.workspace_id == workspace.id, sa.and_(mine, table.workspace_id.is_(None)))
    recent = table.last_seen >= utc_now() - FORGOTTEN_AFTER
    return sa.select(table).where(mine, recent).order_by(table.created_at.desc(), table.id)


def status_of(row: tables.RolloutServer, now: datetime | None = None) -> str:
    return "gone" if (now or utc_now()) - row.last_seen > SILENT_AFTER else row.status


def build_server(row: tables.RolloutServer) -> ServerRow:
    status = status_of(row)
    return ServerRow.from_row(
        row,
        status=status,
        error=row.error if status == "unhealthy" else None,
        has_api_key=row.key_id is not None,
        scope="workspace" if row.workspace_id else "user",
    )


def _own(session: Session, user: tables.User, server_id: str) -> tables.RolloutServer:
    row = session.get(tables.RolloutServer, server_id, with_for_update=True)
    if row is None or row.owner_id != user.id:
        raise NotFound(f"no rollout server {server_id}", hint="restart it: osmosis serve registers it")
    return row


def _about(row: tables.RolloutServer) -> str:
    return "|".join(("rollout-server", row.id, row.owner_id, row.host, str(row.port)))
