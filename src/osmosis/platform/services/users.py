"""People: made, found. Their credentials are `tokens`, what they may do in a workspace is `workspaces`."""

from __future__ import annotations

import re

import sqlalchemy as sa
import sqlalchemy.orm
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.records.contract.body import moment
from osmosis.records.contract.people import PersonRow

from . import secrets


def ensure_owner(session: Session, handle: str) -> tables.User:
    """The person who runs this platform; made at the first start."""
    owner = session.scalars(sa.select(tables.User).order_by(tables.User.created_at).limit(1)).first()
    return owner or create_user(session, handle, email=f"{_handle(handle)}@localhost", name=handle, operator=True)


def find(session: Session, text: str) -> tables.User | None:
    """The person with this handle or address, None when there is none."""
    wanted = text.strip().lower()
    query = sa.select(tables.User).where(sa.or_(tables.User.handle == wanted, tables.User.email == wanted))
    return session.scalars(query).first()


def require(session: Session, handle: str) -> tables.User:
    """The same. NotFound when there is none."""
    user = find(session, handle)
    if user is None:
        raise NotFound(f"there is no user {handle!r}", hint="osmosis platform user list")
    return user


def listed(session: Session) -> list[PersonRow]:
    """Everybody, by handle."""
    return [body(session, user) for user in session.scalars(sa.select(tables.User).order_by(tables.User.handle))]


def body(session: Session, user: tables.User) -> PersonRow:
    seen = session.scalar(sa.select(sa.func.max(tables.Token.last_used_at)).where(tables.Token.user_id == user.id))
    theirs = (
        sa.select(tables.Workspace.name, tables.Member.role)
        .join(tables.Workspace, tables.Workspace.id == tables.Member.workspace_id)
        .where(tables.Member.user_id == user.id)
        .order_by(tables.Workspace.name)
    )
    return PersonRow(
        id=user.id,
        handle=user.handle,
        name=user.name,
        email=user.email,
        operator=user.operator,
        created_at=moment(user.created_at),
        last_used_at=moment(seen),
        workspaces={name: role for name, role in session.execute(theirs)},
    )


def remove(session: Session, user: tables.User, heir: tables.User | None) -> None:
    """A person goes with their tokens, roles and personal secrets; what they made stays.

    Conflict for the last one who runs the platform, and while a workspace would be left without an owner: `heir`
    becomes that.
    """
    others = sa.select(sa.func.count()).where(tables.User.operator.is_(True), tables.User.id != user.id)
    if user.operator and not session.scalar(others):
        raise Conflict(f"{user.handle} is the last operator of this platform", hint="osmosis platform user list")
    alone = _owned_alone(session, user)
    if alone and heir is None:
        names = ", ".join(workspace.name for workspace in alone)
        raise Conflict(
            f"{user.handle} is the last owner of {names}",
            hint=f"say who becomes it: osmosis platform user remove {user.handle} --give-to PERSON",
            code="LAST_OWNER",
        )
    if heir is not None:
        for workspace in alone:
            session.merge(tables.Member(workspace_id=workspace.id, user_id=heir.id, role="owner"))
    secrets.delete_of_person(session, user.id)
    session.delete(user)
    session.flush()


def _owned_alone(session: Session, user: tables.User) -> list[tables.Workspace]:
    other = sa.orm.aliased(tables.Member)
    another = sa.exists().where(
        other.workspace_id == tables.Workspace.id, other.role == "owner", other.user_id != user.id
    )
    query = (
        sa.select(tables.Workspace)
        .join(tables.Member, tables.Member.workspace_id == tables.Workspace.id)
        .where(tables.Member.user_id == user.id, tables.Member.role == "owner", ~another)
        .with_for_update(of=tables.Workspace)
    )
    return list(session.scalars(query))


def create_user(session: Session, handle: str, *, email: str, name: str, operator: bool = False) -> tables.User:
    """A new person, with the roles that wait for their address (empty: `handle@localhost`).

    ValidationError when the handle or the address is taken.
    """
    handle = _handle(handle)
    email = email.strip().lower() or f"{handle}@localhost"
    taken = sa.or_(tables.User.handle == handle, tables.User.email == email)
    if session.scalars(sa.select(tables.User).where(taken)).first():
        raise ValidationError(f"a user {handle!r} or with the address {email!r} already exists", field="handle")
    user = tables.User(handle=handle, email=email, name=name, operator=operator)
    session.add(user)
    session.flush()
    for invitation in session.scalars(sa.select(tables.Invitation).where(tables.Invitation.email == email)).all():
        session.add(tables.Member(workspace_id=invitation.workspace_id, user_id=user.id, role=invitation.role))
        session.delete(invitation)
    session.flush()
    return user


def _handle(text: str) -> str:
    handle = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    return handle or "local"
