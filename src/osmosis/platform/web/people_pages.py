import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlencode, urlsplit

from fastapi import Form, Query, Request, Response
from fastapi.responses import StreamingResponse

from osmosis.base.net import is_loopback
from osmosis.errors import OsmosisError, ValidationError
from osmosis.platform import tables
from osmosis.platform.auth import login as login_flows, tokens, users
from osmosis.platform.paging import fetch_numbered
from osmosis.platform.web.session import PosterDep, Viewer, ViewerDep, platform_of
from osmosis.platform.web.templating import page, page_router, redirect
from osmosis.platform.workspaces import audit, quotas, service as workspaces
from osmosis.records.api import accounts as account_api
from osmosis.viewer.page import SECURITY

router = page_router()
Text = Annotated[str, Form(max_length=320)]

EXPORT_ROWS = 500


@router.get("/{workspace}/members")
def member_list(viewer: ViewerDep, workspace: str) -> Response:
    return _members(viewer, workspace)


def _members(viewer: Viewer, workspace: str, problem: OsmosisError | None = None) -> Response:
    with viewer.platform.db.read() as session:
        row, role = workspaces.by_name(session, viewer.user, workspace)
        rows = workspaces.list_members(session, row)
        use = quotas.build_use(session, row)
    return page(
        "members.html", viewer, here="members", workspace=workspace, found=rows, role=role, roles=account_api.ROLES,
        use=use, policy=account_api.POLICY, may=account_api.may, problem=problem,
    )  # fmt: skip


@router.post("/{workspace}/members")
def invite(
    viewer: PosterDep, workspace: str, person: Text, role: Annotated[account_api.Role, Form()] = "member"
) -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, mine = workspaces.by_name(session, viewer.user, workspace, "members")
            invitation = workspaces.invite_member(session, row, viewer.user, mine, person, role)
            action = "member.invite" if invitation.invited else "member.add"
            audit.note(session, viewer, action, invitation.handle or invitation.email or "", workspace=row, role=role)
    except OsmosisError as problem:
        return _members(viewer, workspace, problem)
    return redirect(f"/{workspace}/members")


@router.post("/{workspace}/members/{person}/role")
def change_role(viewer: PosterDep, workspace: str, person: str, role: Annotated[account_api.Role, Form()]) -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, mine = workspaces.by_name(session, viewer.user, workspace, "members")
            workspaces.change_member(session, row, mine, person, role)
            audit.note(session, viewer, "member.role", person, workspace=row, role=role)
    except OsmosisError as problem:
        return _members(viewer, workspace, problem)
    return redirect(f"/{workspace}/members")


@router.post("/{workspace}/members/{person}/remove")
def remove(viewer: PosterDep, workspace: str, person: str) -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, mine = workspaces.by_name(session, viewer.user, workspace)
            removed = workspaces.remove_member(session, row, viewer.user, mine, person)
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
    return _people(viewer, link=viewer.platform.settings.login_url(login.device_code), handle=handle)


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
        rows, position = fetch_numbered(session, query, at)
    of = workspace.name if workspace else None
    return page("audit.html", viewer, here="audit", workspace=of, found=rows, **position, action=action)


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


# -- tokens, and `/cli-auth`, where a command line of generation 0.2 gets one on a port of its own machine --


@router.get("/tokens")
def token_list(viewer: ViewerDep) -> Response:
    return _token_page(viewer)


def _token_page(
    viewer: Viewer, *, issued: tokens.IssuedToken | None = None, problem: OsmosisError | None = None
) -> Response:
    with viewer.platform.db.read() as session:
        rows = tokens.list_tokens(session, viewer.token)
        names = [row.name for row, _, _ in workspaces.list_workspaces(session, viewer.user)]
    children = {row.id: sum(1 for other, _ in rows if other.parent_id == row.id) for row, _ in rows}
    return page(
        "tokens.html", viewer, here="tokens", found=rows, children=children, made=issued, problem=problem,
        scopes=account_api.SCOPES, usual=account_api.USUAL_SCOPES, names=names, days=account_api.TOKEN_DAYS,
        most=account_api.MAX_TOKEN_DAYS,
    )  # fmt: skip


@router.post("/tokens")
def make_token(
    viewer: PosterDep,
    name: Annotated[str, Form(min_length=1, max_length=200)],
    days: Annotated[int, Form(ge=1, le=account_api.MAX_TOKEN_DAYS)] = account_api.TOKEN_DAYS,
    scope: Annotated[list[account_api.TokenScope] | None, Form()] = None,
    only: Annotated[str, Form()] = "",
) -> Response:
    seconds = int(timedelta(days=days).total_seconds())
    wish = account_api.NewToken(
        name=name, scopes=scope or list(account_api.USUAL_SCOPES), workspace=only or None, expires_in=seconds
    )
    try:
        with viewer.platform.db.write() as session:
            issued = tokens.create_named(session, viewer.token, wish)
            audit.note_token(session, viewer, "token.create", issued.row, scopes=issued.row.scopes)
    except OsmosisError as problem:
        return _token_page(viewer, problem=problem)
    return _token_page(viewer, issued=issued)


@router.post("/tokens/{token_id}/revoke")
def revoke(viewer: PosterDep, token_id: str) -> Response:
    with viewer.platform.db.write() as session:
        audit.note_token(session, viewer, "token.revoke", tokens.revoke(session, viewer.token, token_id))
    return redirect("/tokens")


QueryText = Annotated[str, Query(max_length=2000)]
LongText = Annotated[str, Form(max_length=2000)]


@dataclass(frozen=True, slots=True)
class Callback:
    url: str
    origin: str
    state: str

    def answer(self, **values: str) -> str:
        return f"{self.url}?{urlencode({**values, 'state': self.state})}"


def callback_of(redirect_uri: str, state: str, port: str) -> Callback:
    """Check a callback: plain http to this person's own machine, with a port and a path."""
    try:
        parts = urlsplit(redirect_uri)
        actual_port = parts.port
    except ValueError:
        parts, actual_port = urlsplit(""), None
    plain = redirect_uri.isprintable() and not set(redirect_uri) & set(" \\@?#")
    if parts.scheme != "http" or not is_loopback(parts.hostname or "") or not actual_port or not plain:
        message = "redirect_uri must be http://localhost:PORT/PATH: a token is only sent to your own machine"
        raise ValidationError(message, hint="start the login again on the command line", field="redirect_uri")
    if port and port != str(actual_port):
        raise ValidationError("port is not the port of redirect_uri", hint="start the login again", field="port")
    if not 8 <= len(state) <= 500 or not state.isprintable():
        raise ValidationError("state must have 8 to 500 characters", hint="start the login again", field="state")
    return Callback(redirect_uri, f"http://{parts.netloc}", state)


@router.get("/cli-auth")
def ask(
    viewer: ViewerDep, redirect_uri: QueryText, state: QueryText, port: QueryText = "", device_name: QueryText = ""
) -> Response:
    callback = callback_of(redirect_uri, state, port)
    device = device_name[:200] or "unnamed device"
    response = page("cli_auth.html", viewer, callback=callback, device_name=device)
    # A browser holds the redirect after a form to the policy of the form's page.
    allowed = f"form-action 'self' {callback.origin}"
    policy = SECURITY["Content-Security-Policy"].replace("form-action 'self'", allowed)
    response.headers["Content-Security-Policy"] = policy
    return response


@router.post("/cli-auth")
def decide(
    viewer: PosterDep, redirect_uri: LongText, state: LongText, answer: LongText, device_name: LongText = ""
) -> Response:
    callback = callback_of(redirect_uri, state, "")
    if answer != "approve":
        answers = {"error": "access_denied", "error_description": "the login was denied in the browser"}
        return redirect(callback.answer(**answers))
    with viewer.platform.db.write() as session:
        issued = tokens.issue(session, viewer.user, device_name, kind="device", maker=viewer.token)
        audit.note(session, viewer, "login.approve", device_name)
    return redirect(callback.answer(token=issued.text))
