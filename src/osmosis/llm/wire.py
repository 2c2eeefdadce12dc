"""How a model call crosses the network: one POST, its status, its `Retry-After` and its body.

Plain http without a proxy, which is how a model server in the same machine or rack is asked, goes over a small
HTTP/1.1 client (parsing is httptools', the parser of uvicorn): a call costs a third of what it costs through
aiohttp, and aiohttp need not be imported. Everything else (TLS, proxies) is aiohttp's. Neither follows redirects, and
both raise `asyncio.TimeoutError` or `OSError`-like errors, which the caller puts into words. A call is sent again only
when a kept-alive connection turns out to have been closed by the server before the first byte of an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from osmosis.errors import ValidationError

from .connection import ConnectionFailed, HttpReply, NothingCame
from .connections import Connections

if TYPE_CHECKING:
    import aiohttp

__all__ = ["ConnectionFailed", "HttpReply", "PlainWire", "Pool", "Wire", "exchange", "open_wire"]


class Wire(Protocol):
    """Sends one body and returns the reply. `timeout_s` covers everything but connecting; None = no limit."""

    def post(self, payload: bytes, *, heard: Callable[[bytes], None] | None = None) -> Awaitable[HttpReply]:
        """`heard` is told the body of a reply of status 200 as it comes, and must not raise; the reply has it whole."""
        ...

    async def close(self) -> None: ...


class Pool:
    """Connections that wires to many URLs share, each rollout having a URL of its own. Whoever makes it closes it."""

    def __init__(self) -> None:
        self._plain: dict[tuple[str, int], Connections] = {}
        self.sessions: dict[bool, aiohttp.ClientSession] = {}
        """For TLS and proxies, by whether the environment's proxies are asked; opened when they are used."""

    def connections(self, host: str, port: int) -> Connections:
        """To this server over plain http."""
        return self._plain.setdefault((host, port), Connections(host, port))

    async def close(self) -> None:
        for connections in self._plain.values():
            connections.close()
        self._plain.clear()
        sessions = list(self.sessions.values())
        self.sessions.clear()
        for session in sessions:
            await session.close()


def open_wire(
    url: str, headers: dict[str, str], *, timeout_s: float | None, direct: bool, pool: Pool | None = None
) -> Wire:
    """The cheapest wire that can reach this URL; over the connections of `pool` when there is one.

    `direct` asks no proxy that the environment names.
    """
    parts = urlsplit(url)
    if parts.scheme == "http" and not parts.username and (direct or not _proxied(parts.hostname or "")):
        return PlainWire(url, headers, timeout_s=timeout_s, pool=pool)
    from .wire_aiohttp import AiohttpWire  # a quarter of a second, and a model server on this machine does without it

    shared = pool.sessions if pool else None
    return AiohttpWire(url, headers, timeout_s=timeout_s, trust_env=not direct, shared=shared)


async def exchange(
    connections: Connections,
    request: bytes,
    timeout_s: float | None,
    heard: Callable[[bytes], None] | None = None,
) -> HttpReply:
    """Sends a whole request, head and body, and returns the reply."""
    while True:
        connection = connections.idle() or await connections.take()
        try:
            return await connection.ask(request, timeout_s, heard=heard)
        except NothingCame:
            continue  # it served before; a new connection that is closed at once is an error
        finally:
            connections.give_back(connection)


def _proxied(host: str) -> bool:
    from urllib.request import getproxies, proxy_bypass  # brings the whole of http.client: not for loopback

    proxies = getproxies()
    return bool(proxies.get("http") or proxies.get("all")) and not proxy_bypass(host)


class PlainWire:
    """Kept-alive HTTP/1.1 connections to one http URL."""

    def __init__(self, url: str, headers: dict[str, str], *, timeout_s: float | None, pool: Pool | None = None) -> None:
        parts = urlsplit(url)
        self._shared = pool is not None
        self._connections = (pool.connections if pool else Connections)(parts.hostname or "", parts.port or 80)
        self._timeout_s = timeout_s
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Accept: application/json",
            "Accept-Encoding: identity",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines)
        if any(mark in value for value in (path, *headers, *headers.values()) for mark in "\r\n"):
            raise ValidationError(
                "the endpoint's URL or key contains a line break", hint="check the variable it comes from"
            )
        self._head = head.encode() + b"\r\nContent-Length: "

    def post(self, payload: bytes, *, heard: Callable[[bytes], None] | None = None) -> Awaitable[HttpReply]:
        request = b"%b%d\r\n\r\n%b" % (self._head, len(payload), payload)
        return exchange(self._connections, request, self._timeout_s, heard)

    async def close(self) -> None:
        if not self._shared:
            self._connections.close()
