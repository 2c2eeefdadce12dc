"""Secrets of a workspace. A personal one shadows the workspace's, a value given with a run both."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Forbidden, InternalError, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.vault import Sealed, Vault
from osmosis.records.api.accounts import may
from osmosis.records.base import utc_now
from osmosis.records.config.run_config import SECRET_NAME

SCOPES = ("workspace", "user")
MAX_NAME = 255
MAX_VALUE = 64 * 1024


def check_name(name: str) -> None:
    if not SECRET_NAME.match(name) or len(name) > MAX_NAME:
        hint = f"use capital letters, digits and _, starting with a letter, at most {MAX_NAME} characters"
        raise ValidationError(f"{name!r} is not a secret name", hint=hint, field="name")


class Slot(NamedTuple):
    workspace_id: str
    scope: str
    owner_id: str
    name: str


def slot_for(workspace: tables.Workspace, user: tables.User, role: str, *, scope: str, name: str) -> Slot:
    check_name(name)
    if scope not in SCOPES:
        raise ValidationError("scope must be workspace or user", field="scope")
    if scope == "workspace" and not may(role, "secrets.shared"):
        message = f"a {role} cannot set secrets of the workspace; its owners and admins can"
        raise Forbidden(message, hint="set a personal one: --scope personal", code="ROLE_MISSING")
    return Slot(workspace.id, scope, workspace.id if scope == "workspace" else user.id, name)


def store(session: Session, vault: Vault, slot: Slot, value: str, user_id: str | None) -> tables.Secret:
    if not value:
        raise ValidationError(f"the value of {slot.name} is empty", field="value")
    if "\0" in value or len(value.encode()) > MAX_VALUE:
        message = f"the value of {slot.name} cannot be an environment variable (NUL byte, or above 64 KiB)"
        raise ValidationError(message, field="value")
    row, now = _find(session, slot), utc_now()
    if row is None:
        row = tables.Secret(**slot._asdict(), version=0, creator_id=user_id, created_at=now)
        session.add(row)
    row.version += 1
    sealed = vault.seal(value, row.about)
    row.key_id, row.nonce, row.ciphertext = sealed.key_id, sealed.nonce, sealed.ciphertext
    row.updater_id, row.updated_at = user_id, now
    session.flush()
    return row


def store_for_run(
    session: Session, vault: Vault, run: tables.Run, user_id: str | None, values: Mapping[str, str]
) -> None:
    for name, value in values.items():
        store(session, vault, Slot(run.workspace_id, "run", run.id, name), value, user_id)


def delete(session: Session, slot: Slot) -> None:
    row = _find(session, slot)
    if row is None:
        scope = "personal" if slot.scope == "user" else slot.scope
        raise NotFound(f"no {scope} secret named {slot.name}", hint="osmosis secret list")
    session.delete(row)


def delete_of(session: Session, scope: str, owner_id: str, *conditions: sa.ColumnElement[bool]) -> None:
    theirs = sa.delete(tables.Secret).where(tables.Secret.scope == scope, tables.Secret.owner_id == owner_id)
    session.execute(theirs.where(*conditions))


def select_secrets(workspace: tables.Workspace, user: tables.User, scope: str) -> sa.Select[tables.Secret]:
    if scope not in ("all", *SCOPES):
        raise ValidationError("scope must be all, workspace or user", field="scope")
    mine = sa.and_(tables.Secret.scope == "user", tables.Secret.owner_id == user.id)
    shared = tables.Secret.scope == "workspace"
    condition = {"all": sa.or_(mine, shared), "workspace": shared, "user": mine}[scope]
    query = sa.select(tables.Secret).where(tables.Secret.workspace_id == workspace.id, condition)
    return query.order_by(tables.Secret.name, tables.Secret.scope)


def resolve(
    session: Session, workspace_id: str, user_id: str | None, names: Iterable[str], given: Iterable[str] = ()
) -> tuple[dict[str, str], list[str]]:
    names, given = list(names), set(given)
    table = tables.Secret
    own = sa.and_(table.scope == "user", table.owner_id == (user_id or ""))
    query = sa.select(table.name, table.scope).where(table.workspace_id == workspace_id, table.name.in_(names))
    stored: dict[str, set[str]] = {}
    for name, scope in session.execute(query.where(sa.or_(table.scope == "workspace", own))):
        stored.setdefault(name, set()).add(scope)
    scopes = {}
    for name in names:
        scopes_there = stored.get(name, set())
        if name in given:
            scopes[name] = "run"
        elif scopes_there == set(SCOPES):
            scopes[name] = "user_override"
        elif scopes_there:
            scopes[name] = next(iter(scopes_there))
    return scopes, [name for name in names if name not in scopes]


def list_values(session: Session, vault: Vault, workspace_id: str) -> list[str]:
    query = sa.select(tables.Secret).where(tables.Secret.workspace_id == workspace_id)
    return [_open(vault, row) for row in session.scalars(query)]


def values_for(session: Session, vault: Vault, work: tables.Work) -> dict[str, str]:
    return {name: _open(vault, row) for name, row in _rows_for(session, work).items()}


def find_value(session: Session, vault: Vault, workspace_id: str, user_id: str | None, name: str) -> str:
    for scope, owner_id in (("user", user_id), ("workspace", workspace_id)):
        if owner_id and (row := _find(session, Slot(workspace_id, scope, owner_id, name))) is not None:
            return _open(vault, row)
    raise NotFound(f"there is no secret {name}", hint=f"osmosis secret set {name}")


def use_for(session: Session, vault: Vault, work: tables.Work) -> dict[str, str]:
    values = values_for(session, vault, work)
    for row in _rows_for(session, work).values():
        row.last_used_at, row.last_used_by = utc_now(), work.name
    return values


def _rows_for(session: Session, run: tables.Work) -> dict[str, tables.Secret]:
    if not isinstance(run, tables.Run):
        return {}
    names = list(run.secret_scopes)
    owners = {"run": run.id, "user": run.creator_id or "", "workspace": run.workspace_id}
    query = sa.select(tables.Secret).filter_by(workspace_id=run.workspace_id).where(tables.Secret.name.in_(names))
    rows = {(row.name, row.scope): row for row in session.scalars(query) if owners.get(row.scope) == row.owner_id}
    used = {}
    for name in names:
        row = rows.get((name, "run")) or rows.get((name, "user")) or rows.get((name, "workspace"))
        if row is None:
            raise NotFound(f"secret {name} was deleted after the run was submitted", hint=f"osmosis secret set {name}")
        used[name] = row
    return used


def _open(vault: Vault, row: tables.Secret) -> str:
    try:
        return vault.unseal(Sealed(row.key_id, row.nonce, row.ciphertext), row.about)
    except InternalError as error:
        raise InternalError(f"secret {row.name} cannot be decrypted: {error.message}", hint=error.hint) from None


def _find(session: Session, slot: Slot) -> tables.Secret | None:
    return session.scalars(sa.select(tables.Secret).filter_by(**slot._asdict())).first()
