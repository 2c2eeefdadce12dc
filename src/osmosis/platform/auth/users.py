import re

import sqlalchemy as sa
import sqlalchemy.orm
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.workspaces import secrets
from osmosis.records.api.accounts import PersonRow


def ensure_owner(session: Session, handle: str) -> tables.User:
    owner = session.scalars(sa.select(tables.User).order_by(tables.User.created_at).limit(1)).first()
    return owner or create_user(session, handle, email=f"{_handle(handle)}@localhost", name=handle, operator=True)


def find(session: Session, text: str) -> tables.User | None:
    needle = text.strip().lower()
    query = sa.select(tables.User).where(sa.or_(tables.User.handle == needle, tables.User.email == needle))
    return session.scalars(query).first()


def require(session: Session, handle: str) -> tables.User:
    user = find(session, handle)
    if user is None:
        raise NotFound(f"there is no user {handle!r}", hint="osmosis platform user list")
    return user


def list_people(session: Session) -> list[PersonRow]:
    people = session.scalars(sa.select(tables.User).order_by(tables.User.handle))
    return [build_person(session, user) for user in people]


def build_person(session: Session, user: tables.User) -> PersonRow:
    last_used = session.scalar(sa.select(sa.func.max(tables.Token.last_used_at)).where(tables.Token.user_id == user.id))
    theirs = sa.select(tables.Workspace.name, tables.Member.role).select_from(tables.Workspace).join(tables.Member)
    theirs = theirs.where(tables.Member.user_id == user.id).order_by(tables.Workspace.name)
    roles = {name: role for name, role in session.execute(theirs)}
    return PersonRow.from_row(user, last_used_at=last_used, workspaces=roles)


def remove(session: Session, user: tables.User, heir: tables.User | None) -> None:
    """Remove a person; what they made stays. Raise Conflict for the last operator, or an only owner without `heir`."""
    others = sa.select(sa.func.count()).where(tables.User.operator.is_(True), tables.User.id != user.id)
    if user.operator and not session.scalar(others):
        raise Conflict(f"{user.handle} is the last operator of this platform", hint="osmosis platform user list")
    other = sa.orm.aliased(tables.Member)
    another = sa.exists().where(other.workspace_id == tables.Workspace.id, other.role == "owner")
    another = another.where(other.user_id != user.id)
    query = sa.select(tables.Workspace).join(tables.Member).where(tables.Member.user_id == user.id)
    query = query.where(tables.Member.role == "owner", ~another).with_for_update(of=tables.Workspace)
    alone = list(session.scalars(query))
    if alone and heir is None:
        names = ", ".join(workspace.name for workspace in alone)
        hint = f"say who becomes it: osmosis platform user delete {user.handle} --give-to PERSON"
        raise Conflict(f"{user.handle} is the last owner of {names}", hint=hint, code="LAST_OWNER")
    if heir is not None:
        for workspace in alone:
            session.merge(tables.Member(workspace_id=workspace.id, user_id=heir.id, role="owner"))
    secrets.delete_of(session, "user", user.id)
    session.delete(user)
    session.flush()


def create_user(session: Session, handle: str, *, email: str, name: str, operator: bool = False) -> tables.User:
    """Create a person with the roles that wait for their address (empty: `handle@localhost`)."""
    handle = _handle(handle)
    email = email.strip().lower() or f"{handle}@localhost"
    same = sa.or_(tables.User.handle == handle, tables.User.email == email)
    if session.scalars(sa.select(tables.User).where(same)).first():
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
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") or "local"
