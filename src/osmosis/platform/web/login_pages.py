"""Signing in. An OpenID attempt is in a sealed cookie of the browser that made it: no other one can finish it."""

import binascii
import hmac
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict
from typing import Annotated

from fastapi import Form, Query, Request, Response
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis.base.net import is_loopback
from osmosis.errors import AuthRequired, Forbidden, InternalError, NotFound, OsmosisError
from osmosis.platform import Platform
from osmosis.platform.auth import login as login_flows, openid, tokens, users
from osmosis.platform.auth.openid import ATTEMPT_S, OpenIdProvider, SignInAttempt
from osmosis.platform.auth.rate_limits import address_of, limited
from osmosis.platform.auth.tokens import IssuedToken
from osmosis.platform.background import slow
from osmosis.platform.settings import Identity
from osmosis.platform.vault import NONCE_BYTES, Sealed
from osmosis.platform.web.session import (
    GUEST_COOKIE,
    GUEST_SECONDS,
    SESSION_COOKIE,
    PosterDep,
    ViewerDep,
    authenticate_viewer,
    check_form,
    csrf_of,
    platform_of,
    safe_next,
    set_cookie,
)
from osmosis.platform.web.templating import page, page_router, redirect
from osmosis.platform.workspaces import audit
from osmosis.platform.workspaces.audit import Actor

router = page_router()

Text = Annotated[str, Form()]


@router.get("/login")
def login_page(request: Request, next: str = "/", left: bool = False) -> Response:
    try:
        authenticate_viewer(request)
    except AuthRequired:
        return login_form(request, next, left=left)
    return redirect(safe_next(next))


def login_form(
    request: Request, next_page: str, *, problem: OsmosisError | None = None, link: str = "", person: str = "",
    left: bool = False,
) -> Response:  # fmt: skip
    """Render the form, bound to a guest cookie; `link` is the secret of a one-time link, which logs `person` in."""
    platform = platform_of(request)
    stored = request.cookies.get(GUEST_COOKIE, "")
    secret = stored if len(stored) == 43 else secrets.token_urlsafe(32)
    provider: OpenIdProvider | None = request.app.state.openid
    folder = str(platform.settings.data_dir) if is_loopback(platform.settings.host) else "DATA_FOLDER"
    response = page(
        "login.html",
        None,
        next_page=safe_next(next_page),
        problem=problem,
        link=link,
        person=person,
        provider=provider.settings.name if provider else "",
        left=left,
        guest_csrf=csrf_of(platform, secret),
        bootstrap_file=f"{folder}/{login_flows.BOOTSTRAP_FILE}",
    )
    set_cookie(response, platform, GUEST_COOKIE, secret, max_age=GUEST_SECONDS)
    return response


@router.post("/login", dependencies=[limited("login")])
def login(request: Request, token: Text, csrf: Text = "", next: Text = "/") -> Response:
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
    """Ask before a one-time link logs in: programs that fetch links ahead use nothing up."""
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
    response = redirect(safe_next(next_page))
    set_cookie(response, platform_of(request), SESSION_COOKIE, token, max_age=tokens.SESSION_DAYS * 86400)
    response.delete_cookie(GUEST_COOKIE, path="/")
    return response


def browser_of(request: Request) -> str:
    return f"browser: {request.headers.get('user-agent', 'unknown')[:120]}"


@router.post("/logout")
def logout(request: Request, viewer: PosterDep) -> Response:
    with viewer.platform.db.write() as session:
        tokens.revoke(session, viewer.token, viewer.token.id, logout=True)
        audit.note(session, viewer, "login.end", viewer.user.handle)
    response = redirect("/login?left=true" if request.app.state.openid else "/login")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/device")
def device_page(viewer: ViewerDep, user_code: str = "") -> Response:
    waiting, problem = None, None
    if user_code:
        try:
            with viewer.platform.db.read() as session:
                text = user_code.strip()
                waiting = login_flows.find(
                    session, f"{text[:4]}-{text[4:]}" if len(text) == 8 and "-" not in text else text
                )
        except NotFound as error:
            problem = error
    return page("device.html", viewer, waiting=waiting, problem=problem, user_code=user_code, done="")


@router.post("/device", dependencies=[limited("login")])
def decide_device(viewer: PosterDep, user_code: Text, answer: Text) -> Response:
    problem = None
    try:
        with viewer.platform.db.write() as session:
            row = login_flows.decide(session, user_code, viewer.user, approve=answer == "approve", maker=viewer.token)
            audit.note(session, viewer, f"login.{'approve' if answer == 'approve' else 'deny'}", row.device_name)
    except OsmosisError as error:
        problem = error
    done = "" if problem else ("approved" if answer == "approve" else "denied")
    return page("device.html", viewer, waiting=None, problem=problem, user_code=user_code, done=done)


ATTEMPT_COOKIE = "osmosis_sign_in"
ABOUT = "attempt to sign in"
Asked = Annotated[str, Query(max_length=4000)]


@router.get("/login/openid", dependencies=[limited("login")])
@slow("sign-in")
def leave(request: Request, next: Asked = "/") -> Response:
    next_page = safe_next(next)
    platform, provider, attempt = platform_of(request), _provider(request), SignInAttempt.new(next_page)
    try:
        response = redirect(provider.way_there(attempt, _callback(platform)))
    except OsmosisError as problem:
        return login_form(request, next_page, problem=problem)
    box = platform.vault.seal(json.dumps(asdict(attempt)), ABOUT)
    set_cookie(
        response, platform, ATTEMPT_COOKIE, urlsafe_b64encode(box.nonce + box.ciphertext).decode(), max_age=ATTEMPT_S
    )
    return response


@router.get("/login/openid/callback", dependencies=[limited("login")])
@slow("sign-in")
def come_back(
    request: Request, state: Asked = "", code: Asked = "", error: Asked = "", error_description: Asked = "",
    iss: Asked = "",
) -> Response:  # fmt: skip
    platform, provider = platform_of(request), _provider(request)
    attempt, next_page = _attempt(platform, request.cookies.get(ATTEMPT_COOKIE, "")), "/"
    try:
        if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode()):
            message = "this browser did not start this login, or took longer than ten minutes"
            raise AuthRequired(message, hint="log in again", code="OIDC_STATE")
        next_page = attempt.next_page
        provider.check_sender(iss)
        if error or not code:
            raise provider.denied(error or "no code", error_description)
        identity = provider.came_back(attempt, _callback(platform), code)
        try:
            issued = _session_of(request, provider, identity)
        except IntegrityError:  # the same person in two tabs: the other one made them
            issued = _session_of(request, provider, identity)
    except OsmosisError as problem:
        response = login_form(request, next_page, problem=problem)
    else:
        response = enter(request, issued.text, next_page)
    response.delete_cookie(ATTEMPT_COOKIE, path="/")
    return response


@router.get("/logout/openid")
@slow("sign-in")
def end_there(request: Request) -> Response:
    return redirect(_provider(request).way_out(f"{platform_of(request).settings.url}/login") or "/login")


def _provider(request: Request) -> OpenIdProvider:
    provider: OpenIdProvider | None = request.app.state.openid
    if provider is None:
        raise NotFound("this platform has no sign-in provider", hint="log in with a token or a link: /login")
    return provider


def _callback(platform: Platform) -> str:
    return f"{platform.settings.url}/login/openid/callback"


def _session_of(request: Request, provider: OpenIdProvider, identity: Identity) -> IssuedToken:
    by = f"OpenID Connect: {provider.settings.issuer}"
    with platform_of(request).db.write() as session:
        user, method = openid.sign_in(session, provider.settings, identity)
        issued = tokens.issue(session, user, browser_of(request), kind="session")
        viewer = Actor(user, issued.row, address_of(request))
        if method != "known":
            audit.note(session, viewer, "user.add" if method == "added" else "user.identity", user.handle, by=by)
        audit.note(session, viewer, "login.browser", user.handle, by=by)
    return issued


def _attempt(platform: Platform, cookie: str) -> SignInAttempt | None:
    try:
        raw = urlsafe_b64decode(cookie.encode())
        box = Sealed(platform.vault.key_id, raw[:NONCE_BYTES], raw[NONCE_BYTES:])
        attempt = SignInAttempt(**json.loads(platform.vault.unseal(box, ABOUT)))
    except (binascii.Error, ValueError, InternalError):
        return None
    return attempt if attempt.expires > time.time() else None
