"""OpenID Connect: authorization code flow with PKCE (RFC 7636), state and nonce (Core 1.0, 3.1), without redirects."""

from __future__ import annotations

import importlib.util
import logging
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.installation import extra_command
from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_http, is_loopback
from osmosis.errors import AuthRequired, Conflict, Forbidden, NetworkError, UsageError
from osmosis.platform import tables
from osmosis.platform.auth import users
from osmosis.platform.db import changed_by
from osmosis.platform.settings import Identity, OpenIdSettings
from osmosis.records.base import utc_now

if TYPE_CHECKING:  # half a second, which only a sign-in costs
    from authlib.integrations.requests_client import OAuth2Session


log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Neither `none` nor HS: whoever knows the client's secret could sign."""
KNOWN_FOR_S = 3600.0
"""Seconds for which the provider's addresses are cached; its keys are fetched again when one is unknown."""
ATTEMPT_S = 600
TIMEOUT_S = 10.0
LEEWAY_S = 60
MAX_SUBJECT = 255


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    state: str
    nonce: str
    verifier: str
    next_page: str
    expires: float

    @classmethod
    def new(cls, next_page: str) -> SignInAttempt:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, next_page, time.time() + ATTEMPT_S)


class OpenIdProvider:
    def __init__(self, settings: OpenIdSettings) -> None:
        if any(importlib.util.find_spec(name) is None for name in ("authlib", "requests")):
            message = "OSMOSIS_OIDC_ISSUER is set, and what signing in needs is not installed"
            raise UsageError(message, hint=extra_command("oidc"))
        self.settings = settings
        self._secret = settings.secret
        self._found: tuple[float, JsonObject] | None = None
        self._keys: JsonObject | None = None

    def way_there(self, attempt: SignInAttempt, callback: str) -> str:
        metadata = self._metadata()
        with self._session(metadata, callback) as session:
            url, _ = session.create_authorization_url(
                self._endpoint(metadata, "authorization_endpoint"),
                state=attempt.state,
                code_verifier=attempt.verifier,
                nonce=attempt.nonce,
            )
        return str(url)

    def came_back(self, attempt: SignInAttempt, callback: str, code: str) -> Identity:
        from authlib.integrations.base_client import OAuthError
        from joserfc.errors import JoseError
        from requests import RequestException

        metadata = self._metadata()
        with self._session(metadata, callback) as session:
            try:
                token = session.fetch_token(
                    self._endpoint(metadata, "token_endpoint"),
                    code=code,
                    code_verifier=attempt.verifier,
                    grant_type="authorization_code",
                    timeout=TIMEOUT_S,
                    allow_redirects=False,
                )
                claims = self._claims(metadata, token, attempt.nonce)
                # Some providers leave claims to the userinfo endpoint.
                required = ["email", *([self.settings.groups_claim] if self.settings.groups else [])]
                if any(name not in claims for name in required) and is_http(str(metadata.get("userinfo_endpoint"))):
                    url = self._endpoint(metadata, "userinfo_endpoint")
                    more = session.get(url, timeout=TIMEOUT_S, allow_redirects=False)
                    more.raise_for_status()
                    userinfo = _object(more.json())
                    if userinfo.get("sub") != claims["sub"]:
                        raise ValueError("its user info is about somebody else")
                    claims = {**userinfo, **claims}
            except RequestException as error:
                raise self._unreachable(error) from error
            except (OAuthError, JoseError, ValueError) as error:
                raise self._refused(str(error)) from error
        return self._identity(claims)

    def way_out(self, back: str) -> str | None:
        metadata = self._metadata()
        if not metadata.get("end_session_endpoint"):
            return None
        address = self._endpoint(metadata, "end_session_endpoint")
        query = urlencode({"client_id": self.settings.client_id, "post_logout_redirect_uri": back})
        return f"{address}{'&' if '?' in address else '?'}{query}"

    def check_sender(self, issuer: str) -> None:
        """Raise AuthRequired if the answer does not name this issuer where it must (RFC 9207)."""
        metadata = self._metadata()
        if not issuer and metadata.get("authorization_response_iss_parameter_supported"):
            raise self._refused("the answer does not say which provider it came from")
        if issuer and issuer != metadata["issuer"]:
            raise self._refused("the answer came from another provider")

    def denied(self, error: str, description: str) -> AuthRequired:
        reason = f"{error}: {description}" if description else error
        message = f"{self.settings.name} did not sign you in ({reason[:300]})"
        return AuthRequired(message, hint="try again", code="OIDC_DENIED")

    def _session(self, metadata: JsonObject, callback: str) -> OAuth2Session:
        from authlib.integrations.requests_client import OAuth2Session

        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        by_body = "client_secret_basic" not in methods and "client_secret_post" in methods
        method = "none" if not self._secret else "client_secret_post" if by_body else "client_secret_basic"
        return OAuth2Session(
            self.settings.client_id,
            self._secret or None,
            token_endpoint_auth_method=method,
            scope=" ".join(self.settings.scopes),
            redirect_uri=callback,
            code_challenge_method="S256",
        )

    def _metadata(self) -> JsonObject:
        if self._found is None or time.monotonic() - self._found[0] > KNOWN_FOR_S:
            base = self.settings.issuer.rstrip("/")
            metadata = self._fetch(f"{base}/.well-known/openid-configuration")
            if str(metadata.get("issuer")).rstrip("/") != base:
                raise self._refused(f"its configuration is that of {str(metadata.get('issuer'))[:200]!r}")
            self._found = (time.monotonic(), metadata)
        return self._found[1]

    def _endpoint(self, metadata: JsonObject, name: str) -> str:
        address = str(metadata.get(name) or "")
        if not is_http(address) or not (address.startswith("https://") or is_loopback(address)):
            raise self._refused(f"its configuration has no usable {name}")
        return address

    def _fetch(self, url: str) -> JsonObject:
        import requests

        try:
            answer = requests.get(url, timeout=TIMEOUT_S, allow_redirects=False)
            answer.raise_for_status()
            return _object(answer.json())
        except (requests.RequestException, ValueError) as error:
            raise self._unreachable(error) from error

    def _claims(self, metadata: JsonObject, token: Mapping[str, object], nonce: str) -> JsonObject:
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError
        from joserfc.jwk import KeySet

        text = token.get("id_token")
        if not isinstance(text, str):
            raise ValueError("it sent no ID token")
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        allowed = [name for name in ALGORITHMS if name in offered]
        address = self._endpoint(metadata, "jwks_uri")
        keys = self._keys or self._fetch(address)
        try:
            decoded = jwt.decode(text, KeySet.import_key_set(keys), algorithms=allowed)  # type: ignore[arg-type]  # a key set's JSON, checked by it
        except InvalidKeyIdError:
            keys = self._fetch(address)  # it changes them now and then
            decoded = jwt.decode(text, KeySet.import_key_set(keys), algorithms=allowed)  # type: ignore[arg-type]  # a key set's JSON, checked by it
        self._keys = keys
        rules = {
            "iss": {"essential": True, "value": metadata["issuer"]},
            "aud": {"essential": True, "value": self.settings.client_id},
            "sub": {"essential": True},
            "exp": {"essential": True},
            "nonce": {"essential": True, "value": nonce},
        }
        params = {"nonce": nonce, "client_id": self.settings.client_id, "access_token": token.get("access_token")}
        CodeIDToken(decoded.claims, decoded.header, rules, params).validate(leeway=LEEWAY_S)
        return dict(decoded.claims)

    def _identity(self, claims: JsonObject) -> Identity:
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT:
            raise self._refused("it does not say who you are")
        email = _text(claims, "email").lower()
        is_address = email.count("@") == 1 and 2 < len(email) <= 320 and not set(email) & set(" ,;<>\"'\\()")
        groups = claims.get(self.settings.groups_claim)
        return Identity(
            issuer=str(claims["iss"]),
            subject=subject,
            email=email if is_address else "",
            verified=claims.get("email_verified") in (True, "true"),  # some say it as text
            name=_text(claims, "name")[:200],
            handle=_text(claims, "preferred_username").partition("@")[0],
            groups=frozenset(str(group) for group in groups) if isinstance(groups, list) else frozenset(),
        )

    def _unreachable(self, error: Exception) -> NetworkError:
        log.warning("signing in through %s failed: %s", self.settings.issuer, error)
        hint = "try again; an operator of this platform sees the reason in its log: osmosis platform logs"
        message = f"{self.settings.name} does not answer as a sign-in provider does"
        return NetworkError(message, hint=hint, code="OIDC_UNREACHABLE")

    def _refused(self, reason: str) -> AuthRequired:
        log.warning("a sign-in through %s was refused: %s", self.settings.issuer, reason)
        message = f"what {self.settings.name} says about you does not hold: {reason[:300]}"
        hint = "log in again; if it keeps failing, tell an operator of this platform"
        return AuthRequired(message, hint=hint, code="OIDC_REFUSED")


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError("it did not answer with a JSON object")
    return value


def _text(claims: JsonObject, name: str) -> str:
    value = claims.get(name)
    return value.strip() if isinstance(value, str) and value.isprintable() else ""


How = Literal["known", "linked", "added"]
MAX_HANDLE = 50


def sign_in(session: Session, settings: OpenIdSettings, identity: Identity) -> tuple[tables.User, How]:
    """Return the person; raise Forbidden for an unknown one without access, Conflict for another account's address."""
    linked_row = session.get(tables.LinkedIdentity, (identity.issuer, identity.subject))
    if linked_row is not None:
        linked_row.last_used_at = utc_now()
        return session.get_one(tables.User, linked_row.user_id), "known"
    if not identity.email:
        message = f"{settings.name} does not share your e-mail address, and nobody here is linked to your account there"
        hint = "an operator of this platform adds `email` to OSMOSIS_OIDC_SCOPES, or sends you a login link"
        raise Forbidden(message, hint=hint, code="EMAIL_MISSING")
    if not identity.verified:
        message = f"{settings.name} has not verified that {identity.email} is yours"
        raise Forbidden(message, hint="verify your address there, then log in again", code="EMAIL_UNVERIFIED")
    user = session.scalars(sa.select(tables.User).where(tables.User.email == identity.email)).first()
    via: How = "linked"
    if user is not None:
        query = sa.select(tables.LinkedIdentity).filter_by(user_id=user.id, issuer=identity.issuer)
        if session.scalars(query).first() is not None:
            raise Conflict(
                f"{identity.email} belongs to {user.handle}, who signs in with another account of the same provider",
                hint=f"for the same person, an operator types: osmosis platform user link {user.handle} --undo",
                code="IDENTITY_TAKEN",
            )
    else:
        _check_welcome(session, settings, identity)
        base = identity.handle or identity.email.partition("@")[0]
        stem = re.sub(r"[^a-z0-9-]+", "-", base.lower()).strip("-")[:MAX_HANDLE] or "person"
        same = sa.select(tables.User.handle).where(tables.User.handle.startswith(stem, autoescape=True))
        handles = set(session.scalars(same))
        number = 1
        while (handle := stem if number == 1 else f"{stem}-{number}") in handles:
            number += 1
        user = users.create_user(session, handle, email=identity.email, name=identity.name or handle)
        via = "added"
    link = tables.LinkedIdentity(
        issuer=identity.issuer, subject=identity.subject, user_id=user.id, email=identity.email
    )
    session.add(link)
    session.flush()
    return user, via


def unlink(session: Session, user: tables.User) -> int:
    return changed_by(session, sa.delete(tables.LinkedIdentity).where(tables.LinkedIdentity.user_id == user.id))


def _check_welcome(session: Session, settings: OpenIdSettings, identity: Identity) -> None:
    invited = sa.select(tables.Invitation).where(tables.Invitation.email == identity.email)
    if session.scalars(invited).first() is not None:
        return
    rules = [
        *([identity.email.rpartition("@")[2] in settings.domains] if settings.domains else []),
        *([bool(identity.groups & set(settings.groups))] if settings.groups else []),
    ]
    if not rules or not all(rules):
        hint = f"ask an owner or admin of a workspace for: osmosis workspace members {identity.email}"
        raise Forbidden(f"nobody has invited {identity.email} to this platform", hint=hint, code="NOT_INVITED")
