"""Authentication of a rollout server's callers, before a request's body is read and in constant time. An unknown caller
learns nothing, not even whether the body was well-formed. A server without a key takes only bodies that are declared as
JSON, which no web page can send here unasked."""

import hmac
import json
import re
import secrets

from starlette.types import ASGIApp, Receive, Scope, Send

API_KEY_PREFIX = "osm_rollout_"
_BEARER = re.compile(rb"^\s*bearer\s+(\S+)\s*\Z", re.IGNORECASE)


def generate_api_key() -> str:
    return API_KEY_PREFIX + secrets.token_urlsafe(32)


def parse_bearer(header: bytes | None) -> bytes | None:
    if not header:
        return None
    if match := _BEARER.match(header):
        return match.group(1)
    bare = header.strip()
    return bare if bare and not re.search(rb"\s", bare) else None


def validate_api_key(provided: str | bytes | None, expected: str) -> bool:
    token = parse_bearer(provided.encode("utf-8", "surrogateescape") if isinstance(provided, str) else provided)
    return token is not None and hmac.compare_digest(token, expected.encode())


class BearerGuard:
    """ASGI middleware: answer 401 for every path but the open ones unless the key is given."""

    def __init__(self, app: ASGIApp, *, api_key: str, open_paths: frozenset[str] = frozenset({"/health"})) -> None:
        self.app = app
        self._key = api_key
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self.app(scope, receive, send)
            return
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        if validate_api_key(header, self._key):
            await self.app(scope, receive, send)
        else:
            await _answer(send, 401, "Invalid or missing API key", (b"www-authenticate", b"Bearer"))


class JsonOnly:
    """ASGI middleware of a server without a key: answer 415 to a body whose type is not JSON. A browser sends
    `text/plain` and forms to any address without asking it; JSON only after an answer that allows it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            headers = dict(scope["headers"])
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
            if not empty and kind != b"application/json" and not kind.endswith(b"+json"):
                await _answer(send, 415, "send JSON, with the header Content-Type: application/json")
                return
        await self.app(scope, receive, send)


async def _answer(send: Send, status: int, detail: str, *more: tuple[bytes, bytes]) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
