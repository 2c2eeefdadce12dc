"""Which names a server answers to. A page of another site can point a name of its own at this machine (DNS
rebinding) and then talk to a server here as if it were its own; what it cannot change is the Host header.

Loopback names are always accepted. Resolves nothing and trusts no forwarding header.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .net import host_of, is_loopback

if TYPE_CHECKING:  # the floor loads no web framework
    from starlette.types import ASGIApp, Receive, Scope, Send


class HostNames:
    """The names besides loopback: `example.com`, `*.example.com` (any name below it), `*` (any name)."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        given = {name.strip().lower().rstrip(".") for name in names if name.strip()}
        self._any = "*" in given
        self._exact = {host_of(name) for name in given if not name.startswith("*")}
        self._below = tuple(name[1:] for name in given if name.startswith("*."))

    def accepts(self, header: str) -> bool:
        """Whether the Host header of a request names this server."""
        name = host_of(header).lower().rstrip(".")
        return bool(name) and (
            self._any or is_loopback(name) or name in self._exact or (bool(self._below) and name.endswith(self._below))
        )


class HostGuard:
    """ASGI middleware: 421 for a request that names another host. `open_paths` answer to any name."""

    def __init__(self, app: ASGIApp, *, names: HostNames, hint: str, open_paths: Iterable[str] = ()) -> None:
        self.app = app
        self._names = names
        self._hint = hint
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self.app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"host"]
        header = given[0].decode("latin-1") if len(given) == 1 else ""
        if self._names.accepts(header):
            await self.app(scope, receive, send)
            return
        message = f"this server does not answer to the host name {header[:200]!r}"
        refusal = {"error": message, "message": message, "detail": message, "code": "VALIDATION", "hint": self._hint}
        body = json.dumps(refusal).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 421, "headers": headers})
        await send({"type": "http.response.body", "body": body})
