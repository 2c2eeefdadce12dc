"""Who looks at a page: a browser session in a cookie, or a bearer token as in the API.

The cookie holds a token of kind `session` that scripts cannot read and other sites cannot send with a POST. A form
sent with a cookie must carry the session's CSRF value and come from this platform's own pages; a bearer token
needs neither, for no browser adds it by itself.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from fastapi import Request, Response
from starlette.applications import Starlette

from osmosis.errors import AuthRequired, Forbidden
from osmosis.platform import Platform
from osmosis.platform.security.origin import address_of
from osmosis.platform.security.tokens import hash_token
from osmosis.platform.services import tokens
from osmosis.platform.services.audit import Actor
from osmosis.viewer.live import LivePages

SESSION_COOKIE = "osmosis_session"
GUEST_COOKIE = "osmosis_guest"
"""Before the login there is no session; its form is bound to this random value."""
GUEST_SECONDS = 3600


class LoginNeeded(Exception):
    """A browser without a session asked for a page; `page` is where it wanted to go."""

    def __init__(self, page: str) -> None:
        super().__init__(page)
        self.page = page


@dataclass(frozen=True, slots=True)
class Viewer(Actor):
    """A person who looks at a page."""

    csrf: str
    """The value forms carry; empty with a bearer token."""


def platform_of(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform


def live_pages(app: Starlette) -> LivePages:
    """The event streams of an application, made at its start."""
    found: LivePages = app.state.live
    return found


def viewer(request: Request) -> Viewer:
    """The person behind a page request. LoginNeeded without a credential, AuthRequired with a bad bearer token."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme:
        if scheme.lower() != "bearer" or not bearer.strip():
            raise AuthRequired("the Authorization header has no bearer token", code="TOKEN_MISSING")
        return _checked(request, bearer.strip(), csrf=False)
    cookie = request.cookies.get(SESSION_COOKIE)
    if not cookie:
        raise LoginNeeded(_wanted(request))
    try:
        return _checked(request, cookie, csrf=True)
    except AuthRequired:
        raise LoginNeeded(_wanted(request)) from None


def _checked(request: Request, token: str, *, csrf: bool) -> Viewer:
    platform = platform_of(request)
    with platform.db.read() as session:
        row = tokens.authenticate(session, token)
        tokens.require_scope(row, "api")
        tokens.require_unbound(row)
        found = Viewer(row.user, row, address_of(request), csrf_of(platform, token) if csrf else "")
    tokens.touch(platform.db, row)
    return found


def _wanted(request: Request) -> str:
    if request.method != "GET":
        return "/"
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}"


def csrf_of(platform: Platform, secret: str) -> str:
    """The form value that belongs to a session or guest cookie."""
    return platform.vault.sign(f"csrf|{hash_token(secret)}")


def check_form(request: Request, given: str, expected: str) -> None:
    """Forbidden unless the form was made for this session and sent from one of our pages."""
    origin = request.headers.get("origin")
    own = (request.headers.get("host"), urlsplit(platform_of(request).settings.url).netloc)  # a proxy may change Host
    if origin and origin != "null" and urlsplit(origin).netloc not in own:
        raise Forbidden("this form was sent from another site", hint="reload the page and try again")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("this form was sent from another site", hint="reload the page and try again")
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise Forbidden("this form has expired", hint="reload the page and try again")


def check_viewer_form(request: Request, who: Viewer, given: str) -> None:
    """The same for a person who is logged in; a bearer token needs no form value."""
    if who.csrf:
        check_form(request, given, who.csrf)
    platform_of(request).rates.take("write", who.user.id)


async def form_of(request: Request, who: Viewer) -> dict[str, str]:
    """The fields of a form, when it is one of this session's."""
    fields = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    check_viewer_form(request, who, fields.get("csrf", ""))
    return fields


def guest_secret(request: Request) -> str:
    """The guest cookie's value, or a new one."""
    known = request.cookies.get(GUEST_COOKIE, "")
    return known if len(known) == 43 else secrets.token_urlsafe(32)


def set_cookie(response: Response, platform: Platform, name: str, value: str, *, max_age: int) -> None:
    response.set_cookie(
        name,
        value,
        max_age=max_age,
        path="/",
        httponly=True,
        samesite="lax",
        secure=platform.settings.url.startswith("https://"),
    )


def login_url(page: str) -> str:
    return "/login" if page == "/" else f"/login?next={quote(page, safe='')}"


def safe_next(page: str | None) -> str:
    """A path of this platform, `/` for anything that could lead elsewhere."""
    if not page or not page.startswith("/") or page.startswith(("//", "/\\")) or not page.isprintable():
        return "/"
    parts = urlsplit(page)
    return "/" if parts.scheme or parts.netloc or "\\" in page else page
