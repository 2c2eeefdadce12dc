"""Who belongs to a workspace, and as what: list, invite, change, remove.

Only `records.policy` says who may. A workspace always keeps an owner; everybody may leave. Trusts its caller for who
asks, and for the transaction: the workspace's row is locked, so that two owners cannot remove each other at once.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound
from osmosis.platform import tables
from osmosis.records.contract.body import moment
from osmosis.records.contract.people import MemberRow
from osmosis.records.policy import ROLES, Role

from . import secrets, users
from .workspaces import require


def listed(session: Session, workspace: tables.Workspace) -> list[MemberRow]:
    """Owners first, then by handle; those who are invited last."""
    query = (
        sa.select(tables.Member, tables.User)
        .join(tables.User, tables.User.id == tables.Member.user_id)
        .where(tables.Member.workspace_id == workspace.id)
    )
    found = sorted(session.execute(query), key=lambda row: (-ROLES.index(row[0].role), row[1].handle))
    waiting = sa.select(tables.Invitation).where(tables.Invitation.workspace_id == workspace.id)
    rows = [_body(member, user) for member, user in found]
    for one in session.scalars(waiting.order_by(tables.Invitation.email)):
        rows.append(MemberRow(email=one.email, role=one.role, invited=True, since=moment(one.created_at)))
    return rows


def invite(
    session: Session, workspace: tables.Workspace, asker: tables.User, asker_role: str, person: str, role: Role
) -> MemberRow:
    """Somebody joins at once; an address that nobody has here is kept until somebody has it. Conflict for a member."""
    _lock(session, workspace)
    _may_touch(asker_role, role)
    user = users.find(session, person)
    if user is not None:
        if (member := session.get(tables.Member, (workspace.id, user.id))) is not None:
            raise Conflict(
                f"{user.handle} is {_a(member.role)} of {workspace.name} already",
                hint=f"osmosis workspace role {user.handle} {role}",
            )
        member = tables.Member(workspace_id=workspace.id, user_id=user.id, role=role)
        session.add(member)
        session.flush()
        return _body(member, user)
    if "@" not in person:
        raise NotFound(
            f"there is no user {person!r}",
            hint="invite them by their e-mail address, or have them added: osmosis platform user add NAME",
        )
    email = person.strip().lower()
    row = session.get(tables.Invitation, (workspace.id, email))
    if row is None:
        row = tables.Invitation(workspace_id=workspace.id, email=email, inviter_id=asker.id)
        session.add(row)
    row.role = role
    session.flush()
    return MemberRow(email=email, role=role, invited=True, since=moment(row.created_at))


def change(session: Session, workspace: tables.Workspace, asker_role: str, person: str, role: Role) -> MemberRow:
    """Another role. Conflict where it would leave no owner."""
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
    """Somebody leaves, or an invitation is taken back; whose it was is the answer. Conflict for the last owner.

    Their personal secrets here go, and so do the servers that they registered for the workspace.
    """
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
    secrets.delete_of_member(session, workspace.id, user.id)
    servers = sa.delete(tables.RolloutServer).where(
        tables.RolloutServer.workspace_id == workspace.id, tables.RolloutServer.owner_id == user.id
    )
    session.execute(servers)
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
        tables.Member.workspace_id == workspace.id,
        tables.Member.role == "owner",
        tables.Member.user_id != user.id,
    )
    if not session.scalar(others):
        raise Conflict(
            f"{user.handle} is the last owner of {workspace.name}",
            hint="make somebody else owner first: osmosis workspace role PERSON owner",
            code="LAST_OWNER",
        )


def _a(role: str) -> str:
    return f"{'an' if role[0] in 'ao' else 'a'} {role}"


def _body(member: tables.Member, user: tables.User) -> MemberRow:
    return MemberRow(
        handle=user.handle, name=user.name, email=user.email, role=member.role, since=moment(member.created_at)
    )
