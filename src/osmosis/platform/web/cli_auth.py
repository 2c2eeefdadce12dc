"""`/cli-auth`: how the command line of generation 0.2 logs in. It listens on a port of its own machine, opens this
page, and gets its token there once a person has approved.

The token leaves this platform only towards a loopback address, with the `state` that the command line made; nothing
is issued before the approval, which is a form of this session like every other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Depends, Form, Query, Request, Response

from osmosis.base.net import is_loopback
from osmosis.errors import ValidationError
from osmosis.platform.services import audit, tokens
from osmosis.viewer.render import SECURITY

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]
Asked = Annotated[str, Query(max_length=2000)]
Text = Annotated[str, Form(max_length=2000)]


@dataclass(frozen=True, slots=True)
class Callback:
    """Where a command line waits for its token."""

    url: str
    origin: str
    """`http://host:port` of it."""
    state: str

    def answer(self, **values: str) -> str:
        """The address to send the browser to, with the command line's state and these values."""
        return f"{self.url}?{urlencode({**values, 'state': self.state})}"


def callback_of(redirect_uri: str, state: str, port: str) -> Callback:
    """The callback, checked: plain http to this person's own machine, a port, a path and nothing else."""
    try:
        parts = urlsplit(redirect_uri)
        known = parts.port
    except ValueError:
        parts, known = urlsplit(""), None
    plain = redirect_uri.isprintable() and not set(redirect_uri) & set(" \\@?#")
    if parts.scheme != "http" or not is_loopback(parts.hostname or "") or not known or not plain:
        raise ValidationError(
            "redirect_uri must be http://localhost:PORT/PATH: a token is only sent to your own machine",
            hint="start the login again on the command line",
            field="redirect_uri",
        )
    if port and port != str(known):
        raise ValidationError("port is not the port of redirect_uri", hint="start the login again", field="port")
    if not 8 <= len(state) <= 500 or not state.isprintable():
        raise ValidationError("state must have 8 to 500 characters", hint="start the login again", field="state")
    return Callback(redirect_uri, f"http://{parts.netloc}", state)


@router.get("/cli-auth")
def ask(
    request: Request,
    who: ViewerDep,
    redirect_uri: Asked,
    state: Asked,
    port: Asked = "",
    device_name: Asked = "",
) -> Response:
    """Ask the person whether the command line behind this address may act for them."""
    callback = callback_of(redirect_uri, state, port)
    device = device_name[:200] or "unnamed device"
    response = page(request, "cli_auth.html", who, callback=callback, device_name=device)
    # A browser holds the redirect after a form to the policy of the form's page.
    allowed = f"form-action 'self' {callback.origin}"
    policy = SECURITY["Content-Security-Policy"].replace("form-action 'self'", allowed)
    response.headers["Content-Security-Policy"] = policy
    return response


@router.post("/cli-auth")
def decide(
    request: Request,
    who: ViewerDep,
    redirect_uri: Text,
    state: Text,
    answer: Text,
    device_name: Text = "",
    csrf: Text = "",
) -> Response:
    check_viewer_form(request, who, csrf)
    callback = callback_of(redirect_uri, state, "")
    if answer != "approve":
        said = {"error": "access_denied", "error_description": "the login was denied in the browser"}
        return redirect(callback.answer(**said))
    with platform_of(request).db.write() as session:
        issued = tokens.issue(session, who.user, device_name, kind="device", maker=who.token)
        audit.note(session, who, "login.approve", device_name)
    return redirect(callback.answer(token=issued.text))
