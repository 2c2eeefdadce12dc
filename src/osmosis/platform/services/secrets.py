"""Secrets of a workspace: set, list, delete, and the values a job gets.

Values come in here and leave only towards a job's environment. No function that serves a client returns one.
A personal secret shadows the workspace's of the same name; a value given with one run shadows both and is
destroyed with the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Forbidden, InternalError, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.security.vault import Sealed, Vault
from osmosis.records.base import utc_now
from osmosis.records.config import SECRET_NAME
from osmosis.records.contract.body import moment
from osmosis.records.contract.secret import SecretRow
from osmosis.records.policy import may

SCOPES = ("workspace", "user")
MAX_NAME = 255
MAX_VALUE = 64 * 1024


def check_name(name: str) -> None:
    if not SECRET_NAME.match(name) or len(name) > MAX_NAME:
        raise ValidationError(
            f"{name!r} is not a secret name",
            hint=f"use capital letters, digits and _, starting with a letter, at most {MAX_NAME} characters",
            field="name",
        )


def check_value(name: str, value: str) -> None:
    """Values become environment variables: text without NUL, of a bearable size."""
    if not value:
        raise ValidationError(f"the value of {name} is empty", field="value")
    if "\0" in value or len(value.encode()) > MAX_VALUE:
        raise ValidationError(
            f"the value of {name} cannot be an environment variable (NUL byte, or above 64 KiB)", field="value"
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one secret: which it is, and whose."""

    workspace_id: str
    scope: str
    owner_id: str
    """Id of the workspace, the user or the run, by scope."""
    name: str


def slot_for(workspace: tables.Workspace, user: tables.User, role: str, *, scope: str, name: str) -> Slot:
    """Where this person's secret of that scope lies. Forbidden for a member who means the workspace's."""
    check_name(name)
    if scope not in SCOPES:
        raise ValidationError("scope must be workspace or user", field="scope")
    if scope == "workspace" and not may(role, "secrets.shared"):
        raise Forbidden(
            f"a {role} cannot set secrets of the workspace; its owners and admins can",
            hint="set a personal one: --scope personal",
            code="ROLE_MISSING",
        )
    return Slot(workspace.id, scope, workspace.id if scope == "workspace" else user.id, name)


def put(session: Session, vault: Vault, slot: Slot, value: str, user_id: str | None) -> tables.Secret:
    """Set a secret, new or again."""
    check_value(slot.name, value)
    row, now = _find(session, slot), utc_now()
    if row is None:
        row = tables.Secret(
            workspace_id=slot.workspace_id, scope=slot.scope, owner_id=slot.owner_id, name=slot.name, version=0
        )
        row.creator_id, row.created_at = user_id, now
        session.add(row)
    row.version += 1
    sealed = vault.seal(value, row.about)
    row.key_id, row.nonce, row.ciphertext = sealed.key_id, sealed.nonce, sealed.ciphertext
    row.updater_id, row.updated_at = user_id, now
    session.flush()
    return row


def put_for_run(
    session: Session, vault: Vault, run: tables.Run, user_id: str | None, values: Mapping[str, str]
) -> None:
    """Keep the values that came with a run, for that run only."""
    for name, value in values.items():
        put(session, vault, Slot(run.workspace_id, "run", run.id, name), value, user_id)


def delete(session: Session, slot: Slot) -> None:
    """NotFound when there is none of that name in that scope."""
    row = _find(session, slot)
    if row is None:
        scope = "personal" if slot.scope == "user" else slot.scope
        raise NotFound(f"no {scope} secret named {slot.name}", hint="osmosis secret list")
    session.delete(row)


def delete_of_member(session: Session, workspace_id: str, user_id: str) -> None:
    """What somebody who leaves a workspace had set for themselves there."""
    theirs = sa.delete(tables.Secret).where(tables.Secret.scope == "user", tables.Secret.owner_id == user_id)
    session.execute(theirs.where(tables.Secret.workspace_id == workspace_id))


def delete_of_person(session: Session, user_id: str) -> None:
    """The same, everywhere."""
    session.execute(sa.delete(tables.Secret).where(tables.Secret.scope == "user", tables.Secret.owner_id == user_id))


def delete_of_run(session: Session, run_id: str) -> None:
    """The run is over: its own values go."""
    session.execute(sa.delete(tables.Secret).where(tables.Secret.scope == "run", tables.Secret.owner_id == run_id))


def visible(workspace: tables.Workspace, user: tables.User, scope: str) -> sa.Select[tables.Secret]:
    """The workspace's secrets and the person's own, by name; `scope` is `all`, `workspace` or `user`."""
    if scope not in ("all", *SCOPES):
        raise ValidationError("scope must be all, workspace or user", field="scope")
    mine = sa.and_(tables.Secret.scope == "user", tables.Secret.owner_id == user.id)
    shared = tables.Secret.scope == "workspace"
    wanted = {"all": sa.or_(mine, shared), "workspace": shared, "user": mine}[scope]
    return (
        sa.select(tables.Secret)
        .where(tables.Secret.workspace_id == workspace.id, wanted)
        .order_by(tables.Secret.name, tables.Secret.scope)
    )


def resolve(
    session: Session, workspace_id: str, user_id: str | None, names: Iterable[str], given: Iterable[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """`(scopes, missing)`: for each name where its value will come from, and the names that have none."""
    names, given = list(names), set(given)
    query = sa.select(tables.Secret.name, tables.Secret.scope).where(
        tables.Secret.workspace_id == workspace_id,
        tables.Secret.name.in_(names),
        sa.or_(
            tables.Secret.scope == "workspace",
            sa.and_(tables.Secret.scope == "user", tables.Secret.owner_id == (user_id or "")),
        ),
    )
    stored: dict[str, set[str]] = {}
    for name, scope in session.execute(query):
        stored.setdefault(name, set()).add(scope)
    scopes = {}
    for name in names:
        found = stored.get(name, set())
        if name in given:
            scopes[name] = "run"
        elif found == set(SCOPES):
            scopes[name] = "user_override"
        elif found:
            scopes[name] = next(iter(found))
    return scopes, [name for name in names if name not in scopes]


def values_for_run(session: Session, vault: Vault, run: tables.Run) -> dict[str, str]:
    """NAME -> value for the job of this run. NotFound when one was deleted after the submit."""
    return {name: _open(vault, row) for name, row in _rows_for_run(session, run).items()}


def note_use(session: Session, run: tables.Run) -> None:
    """A job of this run was given its secrets: write that beside each of them."""
    for row in _rows_for_run(session, run).values():
        row.last_used_at, row.last_used_by = utc_now(), run.name


def _rows_for_run(session: Session, run: tables.Run) -> dict[str, tables.Secret]:
    names = list(run.secret_scopes)
    owners = {"run": run.id, "user": run.creator_id or "", "workspace": run.workspace_id}
    query = sa.select(tables.Secret).where(
        tables.Secret.workspace_id == run.workspace_id, tables.Secret.name.in_(names)
    )
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
    query = sa.select(tables.Secret).where(
        tables.Secret.workspace_id == slot.workspace_id,
        tables.Secret.scope == slot.scope,
        tables.Secret.owner_id == slot.owner_id,
        tables.Secret.name == slot.name,
    )
    return session.scalars(query).first()


def body(secret: tables.Secret, users: Mapping[str | None, tables.User]) -> SecretRow:
    """A secret as clients read it: never its value."""
    creator, updater = users.get(secret.creator_id), users.get(secret.updater_id)
    return SecretRow(
        id=secret.id,
        name=secret.name,
        scope=secret.scope,
        created_at=moment(secret.created_at),
        updated_at=moment(secret.updated_at),
        creator_name=creator.name if creator else None,
        updater_name=updater.name if updater else None,
        last_used_at=moment(secret.last_used_at),
        last_used_by=secret.last_used_by,
    )
