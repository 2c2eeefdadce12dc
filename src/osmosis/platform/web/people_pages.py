"""Pages about people: the members of a workspace and its audit log; everybody, for whoever runs the platform."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from osmosis.errors import OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.services import audit, links, login_flows, members, quotas, tokens, users, workspaces
from osmosis.records.policy import POLICY, ROLES, Action, Role, may
from osmosis.viewer.render import SECURITY

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]
Text = Annotated[str, Form(max_length=320)]

PER_PAGE = 50
EXPORT_ROWS = 500
"""Read at a time."""


def _asked(session: Session, who: Viewer, workspace: str, action: Action) -> tuple[tables.Workspace, str]:
    """The workspace and the viewer's role in it, which must allow this."""
    row, role = workspaces.by_name(session, who.user, workspace)
    workspaces.require(role, action)
    return row, role


@router.get("/{workspace}/members")
def member_list(request: Request, who: ViewerDep, workspace: str) -> Response:
    return _members(request, who, workspace)


def _members(request: Request, who: Viewer, workspace: str, problem: OsmosisError | None = None) -> Response:
    with platform_of(request).db.read() as session:
        row, role = _asked(session, who, workspace, "read")
        found = members.listed(session, row)
        use = quotas.used(session, row)
    return page(
        request, "members.html", who, here="members", workspace=workspace, found=found, role=role, roles=ROLES, use=use,
        policy=POLICY, may=may, problem=problem, status=problem.http_status if problem else 200,
    )  # fmt: skip


@router.post("/{workspace}/members")
def invite(
    request: Request, who: ViewerDep, workspace: str, person: Text, role: Annotated[Role, Form()] = "member",
    csrf: Text = "",
) -> Response:  # fmt: skip
    check_viewer_form(request, who, csrf)
    try:
        with platform_of(request).db.write() as session:
            row, mine = _asked(session, who, workspace, "members")
            made = members.invite(session, row, who.user, mine, person, role)
            action = "member.invite" if made.invited else "member.add"
            audit.note(session, who, action, made.handle or made.email or "", workspace=row, role=role)
    except OsmosisError as problem:
        return _members(request, who, workspace, problem)
    return redirect(f"/{workspace}/members")


@router.post("/{workspace}/members/{person}/role")
def change_role(
    request: Request, who: ViewerDep, workspace: str, person: str, role: Annotated[Role, Form()], csrf: Text = ""
) -> Response:
    check_viewer_form(request, who, csrf)
    try:
        with platform_of(request).db.write() as session:
            row, mine = _asked(session, who, workspace, "members")
            members.change(session, row, mine, person, role)
            audit.note(session, who, "member.role", person, workspace=row, role=role)
    except OsmosisError as problem:
        return _members(request, who, workspace, problem)
    return redirect(f"/{workspace}/members")


@router.post("/{workspace}/members/{person}/remove")
def remove(request: Request, who: ViewerDep, workspace: str, person: str, csrf: Text = "") -> Response:
    check_viewer_form(request, who, csrf)
    try:
        with platform_of(request).db.write() as session:
            row, mine = _asked(session, who, workspace, "read")
            gone = members.remove(session, row, who.user, mine, person)
            audit.note(session, who, "member.remove", gone, workspace=row)
    except OsmosisError as problem:
        return _members(request, who, workspace, problem)
    return redirect("/" if gone == who.user.handle else f"/{workspace}/members")


@router.get("/{workspace}/audit")
def audit_of_workspace(request: Request, who: ViewerDep, workspace: str, action: str = "", at: int = 1) -> Response:
    with platform_of(request).db.read() as session:
        row, _ = _asked(session, who, workspace, "audit")
    return _audit(request, who, row, action, at)


@router.get("/{workspace}/audit.jsonl")
def export_of_workspace(request: Request, who: ViewerDep, workspace: str) -> Response:
    with platform_of(request).db.read() as session:
        row, _ = _asked(session, who, workspace, "audit")
    return _export(request, row.id)


@router.get("/users")
def people(request: Request, who: ViewerDep) -> Response:
    return _people(request, who)


def _people(request: Request, who: Viewer, *, link: str = "", handle: str = "", problem: OsmosisError | None = None
) -> Response:  # fmt: skip
    with platform_of(request).db.read() as session:
        tokens.require_operator(session, who.token)
        found = users.listed(session)
    return page(
        request, "users.html", who, here="users", found=found, link=link, handle=handle, problem=problem,
        status=problem.http_status if problem else 200,
    )  # fmt: skip


@router.post("/users")
def add_person(
    request: Request, who: ViewerDep, handle: Text, email: Text = "", name: Text = "", csrf: Text = ""
) -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    try:
        with platform.db.write() as session:
            tokens.require_operator(session, who.token)
            made = users.create_user(session, handle, email=email, name=name or handle)
            audit.note(session, who, "user.add", made.handle)
    except OsmosisError as problem:
        return _people(request, who, problem=problem)
    return _linked(request, platform, who, made.handle)


@router.post("/users/{handle}/link")
def link_person(request: Request, who: ViewerDep, handle: str, csrf: Text = "") -> Response:
    check_viewer_form(request, who, csrf)
    return _linked(request, platform_of(request), who, handle)


def _linked(request: Request, platform: Platform, who: Viewer, handle: str) -> Response:
    with platform.db.write() as session:
        tokens.require_operator(session, who.token)
        login = login_flows.link_for(session, users.require(session, handle), who.token)
        audit.note(session, who, "user.link", handle)
    return _people(request, who, link=links.login(platform.settings, login.device_code), handle=handle)


@router.get("/audit")
def audit_of_platform(request: Request, who: ViewerDep, action: str = "", at: int = 1) -> Response:
    with platform_of(request).db.read() as session:
        tokens.require_operator(session, who.token)
    return _audit(request, who, None, action, at)


@router.get("/audit.jsonl")
def export_of_platform(request: Request, who: ViewerDep) -> Response:
    with platform_of(request).db.read() as session:
        tokens.require_operator(session, who.token)
    return _export(request, None)


def _audit(request: Request, who: Viewer, workspace: tables.Workspace | None, action: str, at: int) -> Response:
    with platform_of(request).db.read() as session:
        query = audit.newest_first(workspace_id=workspace.id if workspace else None, action=action.strip()[:100])
        total = count_of(session, query)
        pages = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), pages)
        found = list(session.scalars(query.limit(PER_PAGE).offset((at - 1) * PER_PAGE)))
    return page(
        request, "audit.html", who, here="audit", workspace=workspace.name if workspace else None, found=found,
        total=total, at=at, pages=pages, action=action,
    )  # fmt: skip


def _export(request: Request, workspace_id: str | None) -> Response:
    """Everything, newest first, one JSON object a line."""
    db = platform_of(request).db

    def lines() -> Iterator[str]:
        last: int | None = None
        while True:
            query = audit.newest_first(workspace_id=workspace_id)
            if last is not None:
                query = query.where(tables.AuditEntry.id < last)
            with db.read() as session:
                rows = list(session.scalars(query.limit(EXPORT_ROWS)))
            if not rows:
                return
            last = rows[-1].id
            yield "".join(f"{json.dumps(audit.body(row).to_dict())}\n" for row in rows)

    headers = {**SECURITY, "Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="audit.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)
