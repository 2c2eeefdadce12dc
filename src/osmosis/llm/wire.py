"""How a model call crosses the network: one POST, its status, its `Retry-After` and its body.

Plain http without a proxy, which is how a model server in the same machine or rack is asked, goes over a small
HTTP/1.1 client (parsing is httptools', the parser of uvicorn): a call costs a third of what it costs through
aiohttp, and aiohttp need not be imported. Everything else (TLS, proxies) is aiohttp's. Neither follows redirects
nor repeats a call; both raise `asyncio.TimeoutError` or `OSError`-like errors, which the caller puts into words.
"""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import httptools

from osmosis.errors import ValidationError

CONNECT_TIMEOUT_S = 10.0
MAX_BODY = 256 * 1024 * 1024
IDLE_S = 60.0
"""A connection that was idle for longer is not used again: the other side is about to close it."""


class ConnectionFailed(OSError):
    """No answer: refused, cut off, or not HTTP."""


@dataclass(slots=True)
class Reply:
    status: int
    body: bytes
    retry_after: str | None = None


class Wire(Protocol):
    """Sends one body and returns the reply. `timeout_s` covers everything but connecting; None = no limit."""

    async def post(self, payload: bytes) -> Reply: ...

    async def close(self) -> None: ...


def open_wire(url: str, headers: dict[str, str], *, timeout_s: float | None, loopback: bool) -> Wire:
    """The cheapest wire that can reach this URL."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not parts.username and (loopback or not _proxied(parts.hostname or "")):
        return PlainWire(url, headers, timeout_s=timeout_s)
    from .wire_aiohttp import AiohttpWire

    return AiohttpWire(url, headers, timeout_s=timeout_s, trust_env=not loopback)


def _proxied(host: str) -> bool:
    proxies = urllib.request.getproxies()
    return bool(proxies.get("http") or proxies.get("all")) and not urllib.request.proxy_bypass(host)


class PlainWire:
    """Kept-alive HTTP/1.1 connections to one http URL, as many as there are calls at once."""

    def __init__(self, url: str, headers: dict[str, str], *, timeout_s: float | None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._timeout_s = timeout_s
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {path} HTTP/1.1", f"Host: {parts.netloc}", "Accept: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines)
        if any(mark in value for value in (path, *headers, *headers.values()) for mark in "\r\n"):
            raise ValidationError(
                "the endpoint's URL or key has a line break in it", hint="check the variable it comes from"
            )
        self._head = head.encode() + b"\r\nContent-Length: "
        self._idle: list[_Connection] = []

    async def post(self, payload: bytes) -> Reply:
        loop = asyncio.get_running_loop()
        connection = self._reuse(loop)
        if connection is None:
            connection = await self._connect(loop)
        reply = await connection.ask(b"%b%d\r\n\r\n%b" % (self._head, len(payload), payload), self._timeout_s)
        if connection.reusable:
            connection.idle_since = loop.time()
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _reuse(self, loop: asyncio.AbstractEventLoop) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and loop.time() - connection.idle_since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        opening = loop.create_connection(lambda: _Connection(loop), self._host, self._port)
        try:
            _, connection = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        except asyncio.TimeoutError as error:
            raise ConnectionFailed(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection: one call at a time. The `on_*` methods are httptools' callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._answer: asyncio.Future[Reply] | None = None
        self._parser: Any = None
        self._parts: list[bytes] = []
        self._size = 0
        self._retry_after: str | None = None
        self._length_known = False
        self.closed = False
        self.reusable = False
        self.idle_since = 0.0

    async def ask(self, request: bytes, timeout_s: float | None) -> Reply:
        self._answer = answer = self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._parts, self._size, self._retry_after, self.reusable = [], 0, None, False
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._late)
        try:
            self._transport.write(request)
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            self._answer = None
            if not self.reusable:
                self.close()

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _late(self) -> None:
        self._fail(asyncio.TimeoutError())

    def _fail(self, error: BaseException) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # -- asyncio -----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()  # nobody asked: the connection is out of step
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionFailed(f"the answer is not HTTP: {error}"))
            self.close()

    def eof_received(self) -> None:
        waiting = self._answer is not None and not self._answer.done()
        if waiting and self._parser.get_status_code() and not self._length_known:
            self.on_message_complete()  # a body without a length ends with the connection

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.reusable = False
        self._fail(ConnectionFailed(str(error) if error else "the server closed the connection"))

    # -- httptools ---------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self._length_known = False

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif lowered in (b"content-length", b"transfer-encoding"):
            self._length_known = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY:
            self._fail(ConnectionFailed(f"the answer is larger than {MAX_BODY} bytes"))
            self.close()
            return
        self._parts.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # 100 Continue and its like: the answer is still to come
        self.reusable = bool(self._parser.should_keep_alive()) and self._length_known and not self.closed
        if self._answer is not None and not self._answer.done():
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._answer.set_result(Reply(status, body, self._retry_after))
