"""HTTP servers for untrusted callers: uvicorn's connection with limits, and a check of the Host header. A connection
that sends next to nothing, or whose response nobody reads, is closed; the application bounds bodies."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from osmosis.base.net import is_loopback, parse_host

if TYPE_CHECKING:  # the floor loads no web framework
    from starlette.types import ASGIApp, Receive, Scope, Send


LOOK_S = 10.0
PATIENCE_S = 60.0  # Seconds that a request, or the reading of a response, may make no progress
LEAST_BYTES = 256  # Bytes between two checks; fewer are no progress
MAX_HEAD = 64 * 1024  # Bytes of a request line and its headers
FRAMES_PER_BODY = 4  # Bytes of chunk frames per byte of body, beyond `MAX_HEAD`

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    look_s = LOOK_S
    patience_s = PATIENCE_S

    _receiving = True  # A request is arriving: from the first byte of the connection to the end of each message
    _frame_bytes = 0
    _body_bytes = 0
    _arrived = 0
    _still_s = 0.0
    _unread = 0
    _drained = True
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio does this only for sockets that were made with the protocol number of TCP
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._look = self.loop.call_later(self.look_s, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        self._frame_bytes += len(data)
        super().data_received(data)
        if self._frame_bytes > MAX_HEAD + FRAMES_PER_BODY * self._body_bytes and not self.transport.is_closing():
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._receiving, self._frame_bytes, self._body_bytes = True, 0, 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._frame_bytes -= len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving, self._frame_bytes = False, 0
        super().on_message_complete()

    def resume_writing(self) -> None:
        self._drained = True
        super().resume_writing()

    def _watch(self) -> None:
        self._look = self.loop.call_later(self.look_s, self._watch)
        unread = self.transport.get_write_buffer_size()
        stalled = unread > 0 and not self._drained and (self.flow.write_paused or unread == self._unread)
        waiting = self._receiving and not self.flow.read_paused
        late = waiting and self._arrived < LEAST_BYTES
        self._still_s = self._still_s + self.look_s if stalled or late else 0.0
        self._arrived, self._unread, self._drained = 0, unread, False
        if self._still_s >= self.patience_s:
            if stalled:
                self.transport.abort()
            else:
                self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(answer)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()


class HostNames:
    """Accepted names besides loopback: `example.com`, `*.example.com` (subdomains), `*` (any)."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        patterns = {name.strip().lower().rstrip(".") for name in names if name.strip()}
        self._any = "*" in patterns
        self._exact = {parse_host(name) for name in patterns if not name.startswith("*")}
        self._below = tuple(name[1:] for name in patterns if name.startswith("*."))

    def accepts(self, header: str) -> bool:
        name = parse_host(header).lower().rstrip(".")
        return bool(name) and (
            self._any or is_loopback(name) or name in self._exact or (bool(self._below) and name.endswith(self._below))
        )


class HostGuard:
    """ASGI middleware: 421 for a request to another host; `open_paths` accept any host."""

    def __init__(self, app: ASGIApp, *, names: HostNames, hint: str, open_paths: Iterable[str] = ()) -> None:
        self.app = app
        self._names = names
        self._hint = hint
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self.app(scope, receive, send)
            return
        host_headers = [value for name, value in scope["headers"] if name == b"host"]
        header = host_headers[0].decode("latin-1") if len(host_headers) == 1 else ""
        if self._names.accepts(header):
            await self.app(scope, receive, send)
            return
        message = f"this server does not answer to the host name {header[:200]!r}"
        refusal = {"error": message, "message": message, "detail": message, "code": "VALIDATION", "hint": self._hint}
        body = json.dumps(refusal).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 421, "headers": headers})
        await send({"type": "http.response.body", "body": body})
