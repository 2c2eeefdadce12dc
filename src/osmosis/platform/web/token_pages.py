"""A person's tokens: `/tokens`, and `/cli-auth`, where a command line of generation 0.2 gets one. That command line
listens on a port of its own machine and opens `/cli-auth`. Its token is issued once a person has approved, and sent
only to a loopback address, with its `state`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlencode, urlsplit

from fastapi import Form, Query, Response

from osmosis.base.net import is_loopback
from osmosis.errors import OsmosisError, ValidationError
from osmosis.platform.auth import tokens
from osmosis.platform.web.session import PosterDep, Viewer, ViewerDep
from osmosis.platform.web.templating import page, page_router, redirect
from osmosis.platform.workspaces import audit, service as workspaces
from osmosis.records.api.accounts import MAX_TOKEN_DAYS, SCOPES, TOKEN_DAYS, USUAL_SCOPES, NewToken, TokenScope
from osmosis.viewer.render import SECURITY

router = page_router()


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
        scopes=SCOPES, usual=USUAL_SCOPES, names=names, days=TOKEN_DAYS, most=MAX_TOKEN_DAYS,
    )  # fmt: skip


@router.post("/tokens")
def make_token(
    viewer: PosterDep,
    name: Annotated[str, Form(min_length=1, max_length=200)],
    days: Annotated[int, Form(ge=1, le=MAX_TOKEN_DAYS)] = TOKEN_DAYS,
    scope: Annotated[list[TokenScope] | None, Form()] = None,
    only: Annotated[str, Form()] = "",
) -> Response:
    seconds = int(timedelta(days=days).total_seconds())
    wish = NewToken(name=name, scopes=scope or list(USUAL_SCOPES), workspace=only or None, expires_in=seconds)
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


Asked = Annotated[str, Query(max_length=2000)]
Text = Annotated[str, Form(max_length=2000)]


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
def ask(viewer: ViewerDep, redirect_uri: Asked, state: Asked, port: Asked = "", device_name: Asked = "") -> Response:
    callback = callback_of(redirect_uri, state, port)
    device = device_name[:200] or "unnamed device"
    response = page("cli_auth.html", viewer, callback=callback, device_name=device)
    # A browser holds the redirect after a form to the policy of the form's page.
    allowed = f"form-action 'self' {callback.origin}"
    policy = SECURITY["Content-Security-Policy"].replace("form-action 'self'", allowed)
    response.headers["Content-Security-Policy"] = policy
    return response


@router.post("/cli-auth")
def decide(viewer: PosterDep, redirect_uri: Text, state: Text, answer: Text, device_name: Text = "") -> Response:
    callback = callback_of(redirect_uri, state, "")
    if answer != "approve":
        answers = {"error": "access_denied", "error_description": "the login was denied in the browser"}
        return redirect(callback.answer(**answers))
    with viewer.platform.db.write() as session:
        issued = tokens.issue(session, viewer.user, device_name, kind="device", maker=viewer.token)
        audit.note(session, viewer, "login.approve", device_name)
    return redirect(callback.answer(token=issued.text))
