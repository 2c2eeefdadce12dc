"""Workspaces, found by name or repository (`owner/repo`), and only by their members. A workspace keeps an owner: its
row is locked while members change, so that two owners cannot remove each other at once."""

import re
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, Forbidden, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.auth import users
from osmosis.platform.runs.lifecycle import is_live
from osmosis.platform.workspaces import secrets
from osmosis.records.api.accounts import ROLES, RULES, Action, MemberRow, Role, may
from osmosis.records.api.workspaces import check_workspace_name

Owned = TypeVar("Owned", bound="tables.Run | tables.Dataset | tables.BaseModel")
IDENTITY = re.compile(r"^[A-Za-z0-9._~-]+/[A-Za-z0-9._-]+\Z")

# Built once: most requests ask one of them, and building it costs as much as asking.
_IS_MEMBER = tables.Member.user_id == sa.bindparam("user")
_MINE = sa.select(tables.Workspace, tables.Member.role).join(tables.Member).where(_IS_MEMBER)
_BY_NAME = _MINE.where(tables.Workspace.name == sa.bindparam("name"))
_BY_ID = _MINE.where(tables.Workspace.id == sa.bindparam("id"))
_LISTED = sa.select(tables.Workspace, tables.Member.role, tables.Repository).join_from(tables.Workspace, tables.Member)
_LISTED = _LISTED.outerjoin(tables.Repository, tables.Repository.workspace_id == tables.Workspace.id)
_LISTED = _LISTED.where(_IS_MEMBER).order_by(tables.Workspace.name)


def create(session: Session, user: tables.User, name: str) -> tables.Workspace:
    _check_new_name(session, name)
    workspace = tables.Workspace(name=name)
    session.add(workspace)
    session.flush()
    session.add(tables.Member(workspace_id=workspace.id, user_id=user.id, role="owner"))
    session.flush()
    return workspace


def _check_new_name(session: Session, name: str) -> None:
    check_workspace_name(name)
    if session.scalars(sa.select(tables.Workspace).where(tables.Workspace.name == name)).first():
        raise Conflict(f"a workspace named {name!r} already exists", hint="choose another name", field="name")


def rename(session: Session, workspace: tables.Workspace, name: str) -> None:
    if name != workspace.name:
        _check_new_name(session, name)
        workspace.name = name


def delete(session: Session, workspace: tables.Workspace) -> None:
    for table in (tables.Run, tables.Deployment, tables.Merge):
        live = sa.select(table.name).where(table.workspace_id == workspace.id, is_live(table))
        if (name := session.scalars(live.limit(1)).first()) is not None:
            hint = f"osmosis model undeploy {name}" if table is tables.Deployment else "wait for it, or stop it first"
            raise Conflict(f"workspace {workspace.name!r} cannot be deleted: {name!r} is in progress", hint=hint)
    session.delete(workspace)


def list_workspaces(
    session: Session, user: tables.User
) -> list[tuple[tables.Workspace, str, tables.Repository | None]]:
    return [(row, role, connected) for row, role, connected in session.execute(_LISTED, {"user": user.id})]


def role_of(session: Session, user_id: str, workspace_id: str) -> str | None:
    member = session.get(tables.Member, (workspace_id, user_id))
    return member.role if member else None


def by_name(session: Session, user: tables.User, name: str, action: Action = "read") -> tuple[tables.Workspace, str]:
    for workspace, role in session.execute(_BY_NAME, {"user": user.id, "name": name}):
        require(role, action)
        return workspace, role
    raise NotFound(f"no workspace named {name!r}", hint="list yours: osmosis workspace list")


def by_id(session: Session, user: tables.User, workspace_id: str) -> tuple[tables.Workspace, str]:
    for workspace, role in session.execute(_BY_ID, {"user": user.id, "id": workspace_id}):
        return workspace, role
    raise NotFound("no such workspace", hint="list yours: osmosis workspace list")


def admit(
    session: Session, user: tables.User, row: Owned | None, noun: str, action: Action = "read"
) -> tuple[Owned, tables.Workspace, str]:
    """Return a row that was found by its id, its workspace and the person's role there; raise NotFound, Forbidden."""
    role = role_of(session, user.id, row.workspace_id) if row is not None else None
    if row is None or role is None:
        hint = "it may have been deleted, or it belongs to a workspace you are not a member of"
        raise NotFound(f"no such {noun}", hint=hint)
    require(role, action)
    return row, session.get_one(tables.Workspace, row.workspace_id), role


def require(role: str, action: Action) -> None:
    if not may(role, action):
        rule = RULES[action]
        message = f"you are a {role} of this workspace; at least the role {rule.least} is needed to {rule.about}"
        raise Forbidden(message, hint="ask one of its owners: osmosis workspace members", code="ROLE_MISSING")


def resolve(
    session: Session, user: tables.User, *, identity: str | None, name: str | None
) -> tuple[tables.Workspace, str]:
    """Return the workspace of a request and the person's role; errors carry the scope codes of clients."""
    if identity and name:
        message = "the request names both a repository and a workspace; send one of them"
        raise ValidationError(message, code="WORKSPACE_SCOPE_HEADER_CONFLICT")
    if name:
        try:
            return by_name(session, user, name)
        except NotFound as error:
            raise Forbidden(error.message, hint=error.hint, code="WORKSPACE_SCOPE_HEADER_ACCESS_DENIED") from None
    if not identity:
        hint = "run the command in a connected workspace, or add --workspace NAME"
        raise ValidationError("no workspace given", hint=hint, code="GIT_SCOPE_REQUIRED")
    if not IDENTITY.match(identity):
        raise ValidationError(f"{identity!r} is not of the form owner/repo", code="GIT_SCOPE_INVALID")
    identity = identity.lower()
    query = sa.select(tables.Repository.workspace_id).where(tables.Repository.full_name == identity)
    workspace_ids = session.scalars(query.order_by(tables.Repository.created_at.desc())).all()
    if not workspace_ids:
        hint = "connect it: osmosis workspace connect, or add --workspace NAME"
        message = f"no workspace on this platform is connected to {identity}"
        raise Forbidden(message, hint=hint, code="GIT_REPOSITORY_NOT_CONNECTED")
    mine = {workspace.id: (workspace, role) for workspace, role in session.execute(_MINE, {"user": user.id})}
    for workspace_id in workspace_ids:
        if workspace_id in mine:
            return mine[workspace_id]
    raise Forbidden(f"you are not a member of a workspace connected to {identity}", code="GIT_REPOSITORY_ACCESS_DENIED")


def list_members(session: Session, workspace: tables.Workspace) -> list[MemberRow]:
    query = sa.select(tables.Member, tables.User).join_from(tables.Member, tables.User)
    query = query.where(tables.Member.workspace_id == workspace.id)
    pairs = sorted(session.execute(query), key=lambda row: (-ROLES.index(row[0].role), row[1].handle))
    waiting = sa.select(tables.Invitation).where(tables.Invitation.workspace_id == workspace.id)
    rows = [_build_member(member, user) for member, user in pairs]
    for invitation in session.scalars(waiting.order_by(tables.Invitation.email)):
        rows.append(MemberRow.from_row(invitation, invited=True, since=invitation.created_at))
    return rows


def invite_member(
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
        return _build_member(member, user)
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


def change_member(session: Session, workspace: tables.Workspace, asker_role: str, person: str, role: Role) -> MemberRow:
    _lock(session, workspace)
    require(asker_role, "members")
    member, user = _find_member(session, workspace, person)
    _may_touch(asker_role, role, member.role)
    if member.role == "owner" and role != "owner":
        _keep_an_owner(session, workspace, user)
    member.role = role
    session.flush()
    return _build_member(member, user)


def remove_member(
    session: Session, workspace: tables.Workspace, asker: tables.User, asker_role: str, person: str
) -> str:
    """Remove a member, their secrets and servers, or an invitation; return whose it was. Raise Conflict."""
    _lock(session, workspace)
    if person not in (asker.handle, asker.email):
        require(asker_role, "members")
    waiting = session.get(tables.Invitation, (workspace.id, person.strip().lower()))
    if waiting is not None:
        _may_touch(asker_role, waiting.role)
        session.delete(waiting)
        return waiting.email
    member, user = _find_member(session, workspace, person)
    if user.id != asker.id:
        _may_touch(asker_role, member.role)
    if member.role == "owner":
        _keep_an_owner(session, workspace, user)
    session.delete(member)
    secrets.delete_of(session, "user", user.id, tables.Secret.workspace_id == workspace.id)
    session.execute(sa.delete(tables.RolloutServer).filter_by(workspace_id=workspace.id, owner_id=user.id))
    return user.handle


def _find_member(session: Session, workspace: tables.Workspace, person: str) -> tuple[tables.Member, tables.User]:
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


def _build_member(member: tables.Member, user: tables.User) -> MemberRow:
    return MemberRow.from_row(user, role=member.role, since=member.created_at)
