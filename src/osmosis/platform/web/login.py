"""Getting in: the login page, one-time login links, and approving a device that shows a code.

Signing in through somebody else is `openid_pages`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response
from sqlalchemy.orm import Session

from osmosis.base.net import is_loopback
from osmosis.errors import AuthRequired, Forbidden, NotFound, OsmosisError
from osmosis.platform.security.openid import OpenIdProvider
from osmosis.platform.security.origin import address_of
from osmosis.platform.security.rate_limits import limited
from osmosis.platform.services import audit, login_flows, tokens, users
from osmosis.platform.services.audit import Actor
from osmosis.platform.services.tokens import IssuedToken
from osmosis.platform.settings import PlatformSettings

from .session import (
    GUEST_COOKIE,
    GUEST_SECONDS,
    SESSION_COOKIE,
    LoginNeeded,
    Viewer,
    check_form,
    check_viewer_form,
    csrf_of,
    guest_secret,
    platform_of,
    safe_next,
    set_cookie,
    viewer,
)
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]
Text = Annotated[str, Form()]


@router.get("/login")
def login_page(request: Request, next: str = "/", left: bool = False) -> Response:
    """`left`: the person has just logged out."""
    try:
        viewer(request)
    except (LoginNeeded, AuthRequired):
        return login_form(request, next, left=left)
    return redirect(safe_next(next))


def login_form(
    request: Request, next_page: str, *, problem: OsmosisError | None = None, link: str = "", person: str = "",
    left: bool = False,
) -> Response:  # fmt: skip
    """The login form, bound to a guest cookie; `link` is the secret of a one-time link, which logs `person` in."""
    platform = platform_of(request)
    secret = guest_secret(request)
    provider: OpenIdProvider | None = request.app.state.openid
    response = page(
        request,
        "login.html",
        None,
        status=problem.http_status if problem else 200,
        next_page=safe_next(next_page),
        problem=problem,
        link=link,
        person=person,
        provider=provider.settings.name if provider else "",
        left=left,
        guest_csrf=csrf_of(platform, secret),
        bootstrap_file=_bootstrap_file(platform.settings),
    )
    set_cookie(response, platform, GUEST_COOKIE, secret, max_age=GUEST_SECONDS)
    return response


def _bootstrap_file(settings: PlatformSettings) -> str:
    """Where the bootstrap token is; to a network the folder is not told."""
    folder = str(settings.data_dir) if is_loopback(settings.host) else "DATA_FOLDER"
    return f"{folder}/{login_flows.BOOTSTRAP_FILE}"


@router.post("/login", dependencies=[limited("login")])
def login(request: Request, token: Text, csrf: Text = "", next: Text = "/") -> Response:
    """Log in with a platform token, or with the text of the bootstrap file."""
    platform = platform_of(request)
    check_form(request, csrf, csrf_of(platform, request.cookies.get(GUEST_COOKIE, "")))
    text = token.strip()
    try:
        if text.startswith("osb_"):
            login_flows.check_bootstrap(platform, text)
            with platform.db.write() as session:
                owner = users.ensure_owner(session, platform.settings.owner_name)
                issued = tokens.issue(session, owner, browser_of(request), kind="session")
                _note(session, request, issued, "bootstrap token")
        else:
            with platform.db.write() as session:
                maker = tokens.authenticate(session, text)
                tokens.require_scope(maker, "api")
                issued = tokens.issue(session, maker.user, browser_of(request), kind="session", maker=maker)
                _note(session, request, issued, "token")
    except (AuthRequired, Forbidden) as error:
        return login_form(request, next, problem=error)
    return enter(request, issued.text, next)


@router.get("/login/link")
def login_link(request: Request, code: str) -> Response:
    """A one-time link asks before it logs in: fetching it ahead, as some programs do, uses nothing up."""
    with platform_of(request).db.read() as session:
        person = login_flows.whose(session, code)
    if person is None:
        return login_form(request, "/", problem=_used_up())
    return login_form(request, "/", link=code, person=person.name)


def _used_up() -> AuthRequired:
    return AuthRequired("this link was already used or has expired", hint="create a new one")


@router.post("/login/link", dependencies=[limited("login")])
def use_login_link(request: Request, code: Text, csrf: Text = "") -> Response:
    platform = platform_of(request)
    check_form(request, csrf, csrf_of(platform, request.cookies.get(GUEST_COOKIE, "")))
    with platform.db.write() as session:
        answer = login_flows.poll(session, code, browser=browser_of(request))
        if not isinstance(answer, str):
            _note(session, request, answer, "link")
    if isinstance(answer, str):
        return login_form(request, "/", problem=_used_up())
    return enter(request, answer.text, "/")


def _note(session: Session, request: Request, issued: IssuedToken, by: str) -> None:
    audit.note(session, Actor(issued.user, issued.row, address_of(request)), "login.browser", issued.user.handle, by=by)


def enter(request: Request, token: str, next_page: str) -> Response:
    """To the page that was wanted, with the session in a cookie."""
    response = redirect(safe_next(next_page))
    set_cookie(response, platform_of(request), SESSION_COOKIE, token, max_age=tokens.SESSION_DAYS * 86400)
    response.delete_cookie(GUEST_COOKIE, path="/")
    return response


def browser_of(request: Request) -> str:
    """The name of a session: what the browser calls itself."""
    return f"browser: {request.headers.get('user-agent', 'unknown')[:120]}"


@router.post("/logout")
def logout(request: Request, who: ViewerDep, csrf: Text = "") -> Response:
    check_viewer_form(request, who, csrf)
    with platform_of(request).db.write() as session:
        tokens.revoke(session, who.token, who.token.id, logout=True)
        audit.note(session, who, "login.end", who.user.handle)
    response = redirect("/login?left=true" if request.app.state.openid else "/login")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/device")
def device_page(request: Request, who: ViewerDep, user_code: str = "") -> Response:
    """Ask the person whether the device that shows this code may act for them."""
    waiting, problem = None, None
    if user_code:
        try:
            with platform_of(request).db.read() as session:
                waiting = login_flows.find(session, _with_dash(user_code))
        except NotFound as error:
            problem = error
    status = problem.http_status if problem else 200
    return page(
        request, "device.html", who, status=status, waiting=waiting, problem=problem, user_code=user_code, done=""
    )


def _with_dash(user_code: str) -> str:
    """`XXXXXXXX` as people also type it becomes `XXXX-XXXX`."""
    text = user_code.strip()
    return f"{text[:4]}-{text[4:]}" if len(text) == 8 and "-" not in text else text


@router.post("/device", dependencies=[limited("login")])
def decide_device(request: Request, who: ViewerDep, user_code: Text, answer: Text, csrf: Text = "") -> Response:
    check_viewer_form(request, who, csrf)
    problem = None
    try:
        with platform_of(request).db.write() as session:
            row = login_flows.decide(session, user_code, who.user, approve=answer == "approve", maker=who.token)
            audit.note(session, who, f"login.{'approve' if answer == 'approve' else 'deny'}", row.device_name)
    except OsmosisError as error:
        problem = error
    done = "" if problem else ("approved" if answer == "approve" else "denied")
    status = problem.http_status if problem else 200
    return page(
        request, "device.html", who, status=status, waiting=None, problem=problem, user_code=user_code, done=done
    )
