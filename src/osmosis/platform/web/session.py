"""The viewer of a page: a browser session in a cookie, or a bearer token. A form with a cookie must have the session's
CSRF value and come from these pages; a bearer token needs neither, because no browser adds it."""

import hmac
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Form, Request, Response
from starlette.applications import Starlette

from osmosis.errors import AuthRequired, Forbidden
from osmosis.platform import Platform
from osmosis.platform.auth import tokens
from osmosis.platform.auth.dependencies import bearer
from osmosis.platform.auth.rate_limits import address_of
from osmosis.platform.workspaces.audit import Actor
from osmosis.viewer.page import EventStreams

SESSION_COOKIE = "osmosis_session"
GUEST_COOKIE = "osmosis_guest"  # Before the login there is no session; the login form is bound to this random value
GUEST_SECONDS = 3600


class LoginNeeded(AuthRequired):
    def __init__(self, page: str) -> None:
        super().__init__("nobody is logged in", hint="log in")
        self.page = page


@dataclass(frozen=True, slots=True)
class Viewer(Actor):
    platform: Platform
    csrf: str  # CSRF value of forms; empty with a bearer token


def platform_of(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform


def event_streams(app: Starlette) -> EventStreams:
    streams: EventStreams = app.state.live
    return streams


def authenticate_viewer(request: Request) -> Viewer:
    if request.headers.get("authorization"):
        return _authenticate(request, bearer(request), csrf=False)
    cookie = request.cookies.get(SESSION_COOKIE)
    if not cookie:
        raise LoginNeeded(_requested_page(request))
    try:
        return _authenticate(request, cookie, csrf=True)
    except AuthRequired:
        raise LoginNeeded(_requested_page(request)) from None


def _authenticate(request: Request, token: str, *, csrf: bool) -> Viewer:
    platform = platform_of(request)
    with platform.db.read() as session:
        row = tokens.authenticate(session, token)
        tokens.require_scope(row, "api")
        tokens.require_unbound(row)
    tokens.touch(platform.db, row)
    return Viewer(row.user, row, address_of(request), platform, csrf_of(platform, token) if csrf else "")


def _requested_page(request: Request) -> str:
    if request.method != "GET":
        return "/"
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}"


def csrf_of(platform: Platform, secret: str) -> str:
    return platform.vault.sign(f"csrf|{tokens.hash_token(secret)}")


def check_form(request: Request, csrf: str, expected: str) -> None:
    origin = request.headers.get("origin")
    own = (request.headers.get("host"), urlsplit(platform_of(request).settings.url).netloc)  # a proxy may change Host
    if origin and origin != "null" and urlsplit(origin).netloc not in own:
        raise Forbidden("this form was sent from another site", hint="reload the page and try again")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("this form was sent from another site", hint="reload the page and try again")
    if not hmac.compare_digest(csrf.encode(), expected.encode()):
        raise Forbidden("this form has expired", hint="reload the page and try again")


def check_viewer_form(request: Request, viewer: Viewer, csrf: str) -> None:
    if viewer.csrf:
        check_form(request, csrf, viewer.csrf)
    viewer.platform.rates.take("write", viewer.user.id)


ViewerDep = Annotated[Viewer, Depends(authenticate_viewer)]


def authenticate_poster(request: Request, viewer: ViewerDep, csrf: Annotated[str, Form()] = "") -> Viewer:
    check_viewer_form(request, viewer, csrf)
    return viewer


PosterDep = Annotated[Viewer, Depends(authenticate_poster)]


async def read_form(request: Request, viewer: ViewerDep) -> dict[str, str]:
    fields = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    check_viewer_form(request, viewer, fields.get("csrf", ""))
    return fields


FormDep = Annotated[dict[str, str], Depends(read_form)]


def set_cookie(response: Response, platform: Platform, name: str, value: str, *, max_age: int) -> None:
    secure = platform.settings.url.startswith("https://")
    response.set_cookie(name, value, max_age=max_age, path="/", httponly=True, samesite="lax", secure=secure)


def safe_next(page: str | None) -> str:
    """Return a path of this platform: `/` for anything that could lead elsewhere."""
    if not page or not page.startswith("/") or page.startswith(("//", "/\\")) or not page.isprintable():
        return "/"
    parts = urlsplit(page)
    return "/" if parts.scheme or parts.netloc or "\\" in page else page
