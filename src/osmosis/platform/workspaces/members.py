"""Members of a workspace, which keeps an owner. The workspace's row is locked, so that two owners cannot remove each
other at once."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound
from osmosis.platform import tables
from osmosis.platform.auth import users
from osmosis.platform.workspaces import secrets
from osmosis.platform.workspaces.service import require
from osmosis.records.api.policy import ROLES, MemberRow, Role


def list_members(session: Session, workspace: tables.Workspace) -> list[MemberRow]:
    query = (
        sa.select(tables.Member, tables.User)
        .join(tables.User, tables.User.id == tables.Member.user_id)
        .where(tables.Member.workspace_id == workspace.id)
    )
    pairs = sorted(session.execute(query), key=lambda row: (-ROLES.index(row[0].role), row[1].handle))
    waiting = sa.select(tables.Invitation).where(tables.Invitation.workspace_id == workspace.id)
    rows = [_body(member, user) for member, user in pairs]
    for invitation in session.scalars(waiting.order_by(tables.Invitation.email)):
        rows.append(MemberRow.from_row(invitation, invited=True, since=invitation.created_at))
    return rows


def invite(
    session: Session, workspace: tables.Workspace, asker: tables.User, asker_role: str, person: str, role: Role
) -> MemberRow:
    _lock(session, workspace)
    _may_touch(asker_role, role)
    user = users.find(session, person)
    if user is not None:
        if (member := session.get(tables.Member, (workspace.id, user.id))) is not None:
            article = "an" if member.role[0] in "ao" else "a"
            message = f"{user.handle} is {article} {member.role} of {workspace.name} already"
            raise Conflict(message, hint=f"osmosis workspace members {user.handle} --role {role}")
        member = tables.Member(workspace_id=workspace.id, user_id=user.id, role=role)
        session.add(member)
        session.flush()
        return _body(member, user)
    if "@" not in person:
        hint = "invite them by their e-mail address, or have them added: osmosis platform user add NAME"
        raise NotFound(f"there is no user {person!r}", hint=hint)
    email = person.strip().lower()
    row = session.get(tables.Invitation, (workspace.id, email))
    if row is None:
        row = tables.Invitation(workspace_id=workspace.id, email=email, inviter_id=asker.id)
        session.add(row)
    row.role = role
    session.flush()
    return MemberRow.from_row(row, invited=True, since=row.created_at)


def change(session: Session, workspace: tables.Workspace, asker_role: str, person: str, role: Role) -> MemberRow:
    _lock(session, workspace)
    require(asker_role, "members")
    member, user = _find(session, workspace, person)
    _may_touch(asker_role, role, member.role)
    if member.role == "owner" and role != "owner":
        _keep_an_owner(session, workspace, user)
    member.role = role
    session.flush()
    return _body(member, user)


def remove(session: Session, workspace: tables.Workspace, asker: tables.User, asker_role: str, person: str) -> str:
    """Remove a member, their secrets and servers, or an invitation; return whose it was. Raise Conflict."""
    _lock(session, workspace)
    if person not in (asker.handle, asker.email):
        require(asker_role, "members")
    waiting = session.get(tables.Invitation, (workspace.id, person.strip().lower()))
    if waiting is not None:
        _may_touch(asker_role, waiting.role)
        session.delete(waiting)
        return waiting.email
    member, user = _find(session, workspace, person)
    if user.id != asker.id:
        _may_touch(asker_role, member.role)
    if member.role == "owner":
        _keep_an_owner(session, workspace, user)
    session.delete(member)
    secrets.delete_of(session, "user", user.id, tables.Secret.workspace_id == workspace.id)
    session.execute(sa.delete(tables.RolloutServer).filter_by(workspace_id=workspace.id, owner_id=user.id))
    return user.handle


def _find(session: Session, workspace: tables.Workspace, person: str) -> tuple[tables.Member, tables.User]:
    user = users.find(session, person)
    member = session.get(tables.Member, (workspace.id, user.id)) if user is not None else None
    if user is None or member is None:
        raise NotFound(f"{person!r} is not a member of {workspace.name}", hint="osmosis workspace members")
    return member, user


def _lock(session: Session, workspace: tables.Workspace) -> None:
    session.execute(sa.select(tables.Workspace.id).where(tables.Workspace.id == workspace.id).with_for_update())


def _may_touch(asker_role: str, *roles: str) -> None:
    require(asker_role, "owners" if "owner" in roles else "members")


def _keep_an_owner(session: Session, workspace: tables.Workspace, user: tables.User) -> None:
    others = sa.select(sa.func.count()).where(
        tables.Member.workspace_id == workspace.id, tables.Member.role == "owner", tables.Member.user_id != user.id
    )
    if not session.scalar(others):
        hint = "make somebody else owner first: osmosis workspace members PERSON --role owner"
        raise Conflict(f"{user.handle} is the last owner of {workspace.name}", hint=hint, code="LAST_OWNER")


def _body(member: tables.Member, user: tables.User) -> MemberRow:
    return MemberRow.from_row(user, role=member.role, since=member.created_at)
