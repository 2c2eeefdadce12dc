"""An OpenID Connect provider on loopback, for tests: discovery, keys, authorization with PKCE, signed ID tokens.

It checks what a provider checks (client, redirect address, code used once, verifier) and can be told to say what a
client must not believe. Needs the extra `oidc`.
"""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from osmosis.base.jsonable import JsonObject

Fault = Literal[
    "",
    "nonce",
    "expired",
    "audience",
    "issuer",
    "no_issuer",
    "signature",
    "unsigned",
    "shared_key",
    "no_token",
    "denied",
    "down",
]
"""What is wrong with its answers: each but the last two is something about the ID token."""


@dataclass
class IssuerAccount:
    """Somebody who signs in there."""

    subject: str = "00u1"
    email: str = "ada@example.com"
    email_verified: bool | str = True
    name: str = "Ada Lovelace"
    preferred_username: str = "ada"
    groups: list[str] = field(default_factory=list)


@dataclass
class OpenIdIssuer:
    """A provider with one client, at which one person is signed in; change its fields between requests."""

    url: str
    client_id: str = "osmosis"
    client_secret: str = "the client's own secret"
    account: IssuerAccount = field(default_factory=IssuerAccount)
    fault: Fault = ""
    asks: bool = False
    """Show a page before the browser is sent back, as people see it."""
    short_tokens: bool = False
    """Tell the address and the groups only at the user info endpoint."""
    asked_for: list[Mapping[str, str]] = field(default_factory=list)
    """The parameters of every authorization request."""
    key: RSAKey = field(default_factory=lambda: _new_key())
    codes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    access: set[str] = field(default_factory=set)

    def change_key(self) -> None:
        """Sign with another key from now on, as providers do now and then."""
        self.key = _new_key()

    def environ(self, **more: str) -> dict[str, str]:
        """The variables that a platform is started with."""
        own = {"ISSUER": self.url, "CLIENT_ID": self.client_id, "CLIENT_SECRET": self.client_secret, **more}
        return {f"OSMOSIS_OIDC_{name}": value for name, value in own.items()}

    def configuration(self) -> JsonObject:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "end_session_endpoint": f"{self.url}/logout",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }

    def authorize(self, query: Mapping[str, str]) -> str:
        """The address that the browser is sent back to."""
        self.asked_for.append(query)
        if query.get("client_id") != self.client_id or query.get("code_challenge_method") != "S256":
            raise ValueError("invalid_request")
        answer = {"state": query["state"], "iss": self.url}
        if self.fault == "denied":
            answer |= {"error": "access_denied", "error_description": "Ada said no"}
        else:
            answer["code"] = secrets.token_urlsafe(16)
            self.codes[answer["code"]] = query
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def token(self, form: Mapping[str, str], authorization: str) -> JsonObject:
        """ValueError, in the words of RFC 6749, for a code that is not this client's."""
        known = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if authorization != f"Basic {known}":
            raise ValueError("invalid_client")
        query = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if query is None or query["redirect_uri"] != form["redirect_uri"] or query["code_challenge"] != challenge:
            raise ValueError("invalid_grant")
        access = secrets.token_urlsafe(16)
        self.access.add(access)
        answer: JsonObject = {"access_token": access, "token_type": "Bearer", "expires_in": 300}
        if self.fault != "no_token":
            answer["id_token"] = self._signed(query["nonce"], access)
        return answer

    def user_info(self) -> JsonObject:
        account = self.account
        return {
            "sub": account.subject,
            "email": account.email,
            "email_verified": account.email_verified,
            "groups": account.groups,
        }

    def _signed(self, nonce: str, access: str) -> str:
        now = int(time.time())
        half = hashlib.sha256(access.encode()).digest()[:16]
        claims: JsonObject = {
            "iss": "https://elsewhere.example.com" if self.fault == "issuer" else self.url,
            "sub": self.account.subject,
            "aud": "another-client" if self.fault == "audience" else self.client_id,
            "iat": now - 3600 if self.fault == "expired" else now,
            "exp": now - 1800 if self.fault == "expired" else now + 300,
            "nonce": "another" if self.fault == "nonce" else nonce,
            "at_hash": base64.urlsafe_b64encode(half).decode().rstrip("="),
            "name": self.account.name,
            "preferred_username": self.account.preferred_username,
        }
        if not self.short_tokens:
            claims |= self.user_info()
        if self.fault == "no_issuer":
            del claims["iss"]
        if self.fault in ("unsigned", "shared_key"):
            return self._weak(claims)
        key = _new_key(self.key.kid) if self.fault == "signature" else self.key
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, key)

    def _weak(self, claims: JsonObject) -> str:
        """Without a signature, or with one that whoever knows the client's secret can make."""
        header = {"alg": "none" if self.fault == "unsigned" else "HS256", "kid": self.key.kid}
        body = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
        if self.fault == "unsigned":
            return f"{body}."
        return f"{body}.{_base64(hmac.digest(self.client_secret.encode(), body.encode(), 'sha256'))}"


@contextmanager
def openid_issuer() -> Iterator[OpenIdIssuer]:
    """A provider that answers at its `url` until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.issuer = OpenIdIssuer(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]  # ours
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.issuer  # type: ignore[attr-defined]  # ours
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    @property
    def issuer(self) -> OpenIdIssuer:
        found: OpenIdIssuer = self.server.issuer  # type: ignore[attr-defined]  # ours
        return found

    def do_GET(self) -> None:
        issuer, parts = self.issuer, urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if issuer.fault == "down":
            self._json({"error": "temporarily_unavailable"}, 503)
        elif parts.path == "/.well-known/openid-configuration":
            self._json(issuer.configuration())
        elif parts.path == "/keys":
            self._json({"keys": [issuer.key.as_dict(private=False)]})
        elif parts.path == "/userinfo":
            known = self.headers.get("Authorization", "").removeprefix("Bearer ") in issuer.access
            self._json(issuer.user_info() if known else {"error": "invalid_token"}, 200 if known else 401)
        elif parts.path == "/authorize" and issuer.asks and "agreed" not in query:
            self._ask(query)
        elif parts.path == "/authorize":
            self._redirect(issuer.authorize(query))
        elif parts.path == "/logout":
            self._redirect(query["post_logout_redirect_uri"])
        else:
            self._json({"error": "not_found"}, 404)

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        try:
            self._json(self.issuer.token(form, self.headers.get("Authorization", "")))
        except ValueError as error:
            self._json({"error": str(error)}, 400)

    def _ask(self, query: Mapping[str, str]) -> None:
        fields = "".join(
            f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">' for name, value in query.items()
        )
        head = '<title>Sign in</title><link rel="icon" href="data:,">'
        body = f'{head}<form>{fields}<button name="agreed" value="1">Continue as Ada</button></form>'
        self._send(200, "text/html; charset=utf-8", body.encode())

    def _redirect(self, to: str) -> None:
        self.send_response(302)
        self.send_header("Location", to)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, body: Mapping[str, object], status: int = 200) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at `asked_for`."""


def _new_key(kid: str | None = None) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid or secrets.token_hex(4), "use": "sig"})


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
