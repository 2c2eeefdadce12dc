"""Workspaces, found by name or repository (`owner/repo`), and only by their members."""

import re

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, Forbidden, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.runs.lifecycle import is_live
from osmosis.records.api.policy import RULES, Action, may
from osmosis.records.api.workspaces import check_workspace_name

IDENTITY = re.compile(r"^[A-Za-z0-9._~-]+/[A-Za-z0-9._-]+\Z")


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
    query = (
        sa.select(tables.Workspace, tables.Member.role, tables.Repository)
        .join(tables.Member, tables.Member.workspace_id == tables.Workspace.id)
        .outerjoin(tables.Repository, tables.Repository.workspace_id == tables.Workspace.id)
        .where(tables.Member.user_id == user.id)
        .order_by(tables.Workspace.name)
    )
    return [(workspace, role, repository) for workspace, role, repository in session.execute(query)]


def role_of(session: Session, user_id: str, workspace_id: str) -> str | None:
    member = session.get(tables.Member, (workspace_id, user_id))
    return member.role if member else None


def by_name(session: Session, user: tables.User, name: str, action: Action = "read") -> tuple[tables.Workspace, str]:
    for workspace, role in _with_role(session, user, tables.Workspace.name == name):
        require(role, action)
        return workspace, role
    raise NotFound(f"no workspace named {name!r}", hint="list yours: osmosis workspace list")


def by_id(session: Session, user: tables.User, workspace_id: str) -> tuple[tables.Workspace, str]:
    for workspace, role in _with_role(session, user, tables.Workspace.id == workspace_id):
        return workspace, role
    raise NotFound("no such workspace", hint="list yours: osmosis workspace list")


def _with_role(
    session: Session, user: tables.User, condition: sa.ColumnElement[bool]
) -> list[tuple[tables.Workspace, str]]:
    query = sa.select(tables.Workspace, tables.Member.role).join(tables.Member)
    pairs = session.execute(query.where(tables.Member.user_id == user.id, condition))
    return [(workspace, role) for workspace, role in pairs]


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
    mine = {workspace.id: (workspace, role) for workspace, role in _with_role(session, user, sa.true())}
    for workspace_id in workspace_ids:
        if workspace_id in mine:
            return mine[workspace_id]
    raise Forbidden(f"you are not a member of a workspace connected to {identity}", code="GIT_REPOSITORY_ACCESS_DENIED")
