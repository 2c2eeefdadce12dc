"""One kept-alive HTTP/1.1 connection: one POST at a time, its status, its `Retry-After` and its body.

Parsing is httptools'. Speaks plain http only, follows no redirect, repeats nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools

MAX_BODY = 256 * 1024 * 1024


class ConnectionFailed(OSError):
    """No answer: refused, cut off, or not HTTP."""


@dataclass(slots=True)
class HttpReply:
    status: int
    body: bytes
    retry_after: str | None = None


class Connection(asyncio.Protocol):
    """One connection: one call at a time. The `on_*` methods are httptools' callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._answer: asyncio.Future[HttpReply] | None = None
        self._parser: Any = None
        self._parts: list[bytes] = []
        self._size = 0
        self._retry_after: str | None = None
        self._length_known = False
        self._heard: Callable[[bytes], None] | None = None
        self.closed = False
        self.reusable = False
        self.idle_since = 0.0

    async def ask(
        self, request: bytes, timeout_s: float | None, *, heard: Callable[[bytes], None] | None = None
    ) -> HttpReply:
        """`heard` is told the body of a reply of status 200 as it comes, and must not raise."""
        answer: asyncio.Future[HttpReply] = self._loop.create_future()
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._parts, self._size, self._retry_after, self.reusable = [], 0, None, False
        self._heard = heard
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._late)
        try:
            self._transport.write(request)
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            self._answer = self._heard = None
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
            self.close()  # unsolicited data: the connection is out of sync
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
        if self._heard is not None and self._parser.get_status_code() == 200:
            self._heard(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # 100 Continue and its like: the answer is still to come
        self.reusable = bool(self._parser.should_keep_alive()) and self._length_known and not self.closed
        if self._answer is not None and not self._answer.done():
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._answer.set_result(HttpReply(status, body, self._retry_after))
