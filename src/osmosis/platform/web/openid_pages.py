"""Signing in through an OpenID Connect provider: the way there, the way back, and the way out of it.

The attempt is in a sealed cookie of the browser that made it, so that any process of the platform finishes it and no
other browser does. Whatever goes wrong is said on the login page, which offers to try again.
"""

from __future__ import annotations

import binascii
import hmac
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.exc import IntegrityError

from osmosis.errors import AuthRequired, InternalError, NotFound, OsmosisError
from osmosis.platform import Platform
from osmosis.platform.security.openid import ATTEMPT_S, OpenIdProvider, SignInAttempt
from osmosis.platform.security.origin import address_of
from osmosis.platform.security.rate_limits import limited
from osmosis.platform.security.vault import NONCE_BYTES, Sealed
from osmosis.platform.services import audit, identities, tokens
from osmosis.platform.services.audit import Actor
from osmosis.platform.services.tokens import IssuedToken
from osmosis.platform.slow_work import apart
from osmosis.records.sign_in import Identity

from .login import browser_of, enter, login_form
from .session import platform_of, safe_next, set_cookie
from .templating import PageRoute, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ATTEMPT_COOKIE = "osmosis_sign_in"
ABOUT = "attempt to sign in"
Asked = Annotated[str, Query(max_length=4000)]


@router.get("/login/openid", dependencies=[limited("login")])
async def leave(request: Request, next: Asked = "/") -> Response:
    """To the provider, and from there back to the page that was wanted."""
    return await apart("sign-in", _leave, request, safe_next(next))


@router.get("/login/openid/callback", dependencies=[limited("login")])
async def come_back(
    request: Request, state: Asked = "", code: Asked = "", error: Asked = "", error_description: Asked = "",
    iss: Asked = "",
) -> Response:  # fmt: skip
    return await apart("sign-in", _come_back, request, state, code, (error, error_description), iss)


@router.get("/logout/openid")
async def end_there(request: Request) -> Response:
    """End the session at the provider, too; it brings the browser back to the login page."""
    settings = platform_of(request).settings
    address = await apart("sign-in", _provider(request).way_out, f"{settings.url}/login")
    return redirect(address or "/login")


def _provider(request: Request) -> OpenIdProvider:
    provider: OpenIdProvider | None = request.app.state.openid
    if provider is None:
        raise NotFound("this platform has no sign-in provider", hint="log in with a token or a link: /login")
    return provider


def _callback(platform: Platform) -> str:
    return f"{platform.settings.url}/login/openid/callback"


def _leave(request: Request, next_page: str) -> Response:
    platform, provider, attempt = platform_of(request), _provider(request), SignInAttempt.new(next_page)
    try:
        response = redirect(provider.way_there(attempt, _callback(platform)))
    except OsmosisError as problem:
        return login_form(request, next_page, problem=problem)
    set_cookie(response, platform, ATTEMPT_COOKIE, _sealed(platform, attempt), max_age=ATTEMPT_S)
    return response


def _come_back(request: Request, state: str, code: str, denied: tuple[str, str], sender: str) -> Response:
    platform, provider = platform_of(request), _provider(request)
    attempt, next_page = _attempt(platform, request.cookies.get(ATTEMPT_COOKIE, "")), "/"
    try:
        if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode()):
            raise AuthRequired(
                "this browser did not start this login, or took longer than ten minutes",
                hint="log in again",
                code="OIDC_STATE",
            )
        next_page = attempt.next_page
        provider.check_sender(sender)
        if denied[0] or not code:
            raise provider.denied(denied[0] or "no code", denied[1])
        issued = _issued(request, provider, provider.came_back(attempt, _callback(platform), code))
    except OsmosisError as problem:
        response = login_form(request, next_page, problem=problem)
    else:
        response = enter(request, issued.text, next_page)
    response.delete_cookie(ATTEMPT_COOKIE, path="/")
    return response


def _issued(request: Request, provider: OpenIdProvider, identity: Identity) -> IssuedToken:
    try:
        return _session_of(request, provider, identity)
    except IntegrityError:  # the same person in two tabs: the other one made them
        return _session_of(request, provider, identity)


def _session_of(request: Request, provider: OpenIdProvider, identity: Identity) -> IssuedToken:
    by = f"OpenID Connect: {provider.settings.issuer}"
    with platform_of(request).db.write() as session:
        user, how = identities.sign_in(session, provider.settings, identity)
        issued = tokens.issue(session, user, browser_of(request), kind="session")
        who = Actor(user, issued.row, address_of(request))
        if how != "known":
            audit.note(session, who, "user.add" if how == "added" else "user.identity", user.handle, by=by)
        audit.note(session, who, "login.browser", user.handle, by=by)
    return issued


def _sealed(platform: Platform, attempt: SignInAttempt) -> str:
    box = platform.vault.seal(json.dumps(asdict(attempt)), ABOUT)
    return urlsafe_b64encode(box.nonce + box.ciphertext).decode()


def _attempt(platform: Platform, cookie: str) -> SignInAttempt | None:
    """The attempt of this browser; None for a cookie that is too old, or none of ours."""
    try:
        raw = urlsafe_b64decode(cookie.encode())
        box = Sealed(platform.vault.key_id, raw[:NONCE_BYTES], raw[NONCE_BYTES:])
        found = SignInAttempt(**json.loads(platform.vault.unseal(box, ABOUT)))
    except (binascii.Error, ValueError, InternalError):
        return None
    return found if found.expires > time.time() else None
