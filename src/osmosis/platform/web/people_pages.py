import json
from collections.abc import Iterator
from typing import Annotated

from fastapi import Form, Request, Response
from fastapi.responses import StreamingResponse

from osmosis.errors import OsmosisError
from osmosis.platform import tables, urls
from osmosis.platform.auth import login as login_flows, tokens, users
from osmosis.platform.paging import fetch_numbered
from osmosis.platform.web.session import PosterDep, Viewer, ViewerDep, platform_of
from osmosis.platform.web.templating import page, page_router, redirect
from osmosis.platform.workspaces import audit, members, quotas, service as workspaces
from osmosis.records.api.policy import POLICY, ROLES, Role, may
from osmosis.viewer.render import SECURITY

router = page_router()
Text = Annotated[str, Form(max_length=320)]

EXPORT_ROWS = 500


@router.get("/{workspace}/members")
def member_list(viewer: ViewerDep, workspace: str) -> Response:
    return _members(viewer, workspace)


def _members(viewer: Viewer, workspace: str, problem: OsmosisError | None = None) -> Response:
    with viewer.platform.db.read() as session:
        row, role = workspaces.by_name(session, viewer.user, workspace)
        rows = members.list_members(session, row)
        use = quotas.build_use(session, row)
    return page(
        "members.html", viewer, here="members", workspace=workspace, found=rows, role=role, roles=ROLES,
        use=use, policy=POLICY, may=may, problem=problem,
    )  # fmt: skip


@router.post("/{workspace}/members")
def invite(viewer: PosterDep, workspace: str, person: Text, role: Annotated[Role, Form()] = "member") -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, mine = workspaces.by_name(session, viewer.user, workspace, "members")
            invitation = members.invite(session, row, viewer.user, mine, person, role)
            action = "member.invite" if invitation.invited else "member.add"
            audit.note(session, viewer, action, invitation.handle or invitation.email or "", workspace=row, role=role)
    except OsmosisError as problem:
        return _members(viewer, workspace, problem)
    return redirect(f"/{workspace}/members")


@router.post("/{workspace}/members/{person}/role")
def change_role(viewer: PosterDep, workspace: str, person: str, role: Annotated[Role, Form()]) -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, mine = workspaces.by_name(session, viewer.user, workspace, "members")
            members.change(session, row, mine, person, role)
            audit.note(session, viewer, "member.role", person, workspace=row, role=role)
    except OsmosisError as problem:
        return _members(viewer, workspace, problem)
    return redirect(f"/{workspace}/members")


@router.post("/{workspace}/members/{person}/remove")
def remove(viewer: PosterDep, workspace: str, person: str) -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, mine = workspaces.by_name(session, viewer.user, workspace)
            removed = members.remove(session, row, viewer.user, mine, person)
            audit.note(session, viewer, "member.remove", removed, workspace=row)
    except OsmosisError as problem:
        return _members(viewer, workspace, problem)
    return redirect("/" if removed == viewer.user.handle else f"/{workspace}/members")


@router.get("/{workspace}/audit")
def audit_of_workspace(viewer: ViewerDep, workspace: str, action: str = "", at: int = 1) -> Response:
    with viewer.platform.db.read() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace, "audit")
    return _audit(viewer, row, action, at)


@router.get("/{workspace}/audit.jsonl")
def export_of_workspace(request: Request, viewer: ViewerDep, workspace: str) -> Response:
    with viewer.platform.db.read() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace, "audit")
    return _export(request, row.id)


@router.get("/users")
def people(viewer: ViewerDep) -> Response:
    return _people(viewer)


def _people(viewer: Viewer, *, link: str = "", handle: str = "", problem: OsmosisError | None = None) -> Response:
    with viewer.platform.db.read() as session:
        tokens.require_operator(session, viewer.token)
        rows = users.list_people(session)
    return page("users.html", viewer, here="users", found=rows, link=link, handle=handle, problem=problem)


@router.post("/users")
def add_person(viewer: PosterDep, handle: Text, email: Text = "", name: Text = "") -> Response:
    try:
        with viewer.platform.db.write() as session:
            tokens.require_operator(session, viewer.token)
            user = users.create_user(session, handle, email=email, name=name or handle)
            audit.note(session, viewer, "user.add", user.handle)
    except OsmosisError as problem:
        return _people(viewer, problem=problem)
    return _linked(viewer, user.handle)


@router.post("/users/{handle}/link")
def link_person(viewer: PosterDep, handle: str) -> Response:
    return _linked(viewer, handle)


def _linked(viewer: Viewer, handle: str) -> Response:
    with viewer.platform.db.write() as session:
        tokens.require_operator(session, viewer.token)
        login = login_flows.link_for(session, users.require(session, handle), viewer.token)
        audit.note(session, viewer, "user.link", handle)
    return _people(viewer, link=urls.login(viewer.platform.settings, login.device_code), handle=handle)


@router.get("/audit")
def audit_of_platform(viewer: ViewerDep, action: str = "", at: int = 1) -> Response:
    with viewer.platform.db.read() as session:
        tokens.require_operator(session, viewer.token)
    return _audit(viewer, None, action, at)


@router.get("/audit.jsonl")
def export_of_platform(request: Request, viewer: ViewerDep) -> Response:
    with viewer.platform.db.read() as session:
        tokens.require_operator(session, viewer.token)
    return _export(request, None)


def _audit(viewer: Viewer, workspace: tables.Workspace | None, action: str, at: int) -> Response:
    with viewer.platform.db.read() as session:
        query = audit.select_entries(workspace_id=workspace.id if workspace else None, action=action.strip()[:100])
        rows, place = fetch_numbered(session, query, at)
    return page(
        "audit.html", viewer, here="audit", workspace=workspace.name if workspace else None, found=rows,
        **place, action=action,
    )  # fmt: skip


def _export(request: Request, workspace_id: str | None) -> Response:
    db = platform_of(request).db

    def lines() -> Iterator[str]:
        last: int | None = None
        while True:
            query = audit.select_entries(workspace_id=workspace_id)
            if last is not None:
                query = query.where(tables.AuditEntry.id < last)
            with db.read() as session:
                rows = list(session.scalars(query.limit(EXPORT_ROWS)))
            if not rows:
                return
            last = rows[-1].id
            yield "".join(f"{json.dumps(audit.build_entry(row).to_dict())}\n" for row in rows)

    headers = {**SECURITY, "Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="audit.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)
