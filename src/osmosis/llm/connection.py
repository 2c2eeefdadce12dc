"""One kept-alive HTTP/1.1 connection: one POST at a time, its status, its `Retry-After` and its body.

Parsing is httptools'. Speaks plain http only, follows no redirect, repeats nothing. What an answer may cost is bounded:
its body, unpacked, and everything around it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import httptools

from osmosis.base.light_dataclass import dataclass

from .outbox import Outbox

MAX_BODY = 256 * 1024 * 1024
MAX_HEAD = 256 * 1024
"""Bytes of headers, interim answers and trailers; chunked bodies may carry four times their own size beyond it."""
_ANY_ZLIB = 32 + zlib.MAX_WBITS
"""gzip or zlib, by its first bytes."""


class ConnectionFailed(OSError):
    """No answer: refused, cut off, or not HTTP."""


class NothingCame(ConnectionFailed):
    """A connection that had served before was closed before the first byte of this answer."""


def unpacked(body: bytes, encoding: str) -> bytes:
    """The body as it was before `Content-Encoding`. We ask for none; some servers compress all the same."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ConnectionFailed(f"the answer is encoded as {encoding!r}, although none was asked for")
    for form in (_ANY_ZLIB, -zlib.MAX_WBITS):  # some servers leave out the header of deflate
        unpacker = zlib.decompressobj(form)
        try:
            text = unpacker.decompress(body, MAX_BODY)
        except zlib.error:
            continue
        if unpacker.unconsumed_tail:
            raise ConnectionFailed(f"the answer is larger than {MAX_BODY} bytes")
        if unpacker.eof:
            return text
    raise ConnectionFailed(f"the answer is not valid {encoding}")


@dataclass(slots=True)
class HttpReply:
    status: int
    body: bytes
    retry_after: str | None = None


class Connection(asyncio.Protocol):
    """One connection: one call at a time. The `on_*` methods are httptools' callbacks."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._loop = outbox.loop
        self.transport: Any = None
        self._answer: asyncio.Future[HttpReply] | None = None
        self._parser: Any = None
        self._body: bytes | bytearray = b""
        """What came in one piece is kept as it is."""
        self._around = 0
        """Bytes that were no body."""
        self._retry_after: str | None = None
        self._encoding = ""
        self._length_known = False
        self._in_body = False
        self._answers = 0
        self._silent = True
        self._heard: Callable[[bytes], None] | None = None
        self._timer_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """Of the call that was under way when it was set: a later one, which may wait longer, sets it anew when it goes
        off. A timer for every call would cost as much as reading the answer."""
        self._due: float | None = None
        self.closed = False
        self.reusable = False
        self.idle_since = 0.0

    async def ask(
        self, request: bytes, timeout_s: float | None, *, heard: Callable[[bytes], None] | None = None
    ) -> HttpReply:
        """`heard` is told the body of a reply of status 200 as it comes, and must not raise."""
        answer: asyncio.Future[HttpReply] = self._loop.create_future()
        self._answer = answer
        self._body, self._around, self._retry_after, self._encoding = b"", 0, None, ""
        self._in_body, self._silent, self.reusable = False, True, False
        self._heard = heard
        if timeout_s is not None:
            due = self._due = self._loop.time() + timeout_s
            if self._timer is None or self._timer_at > due:
                self._set_timer(due)
        try:
            self._outbox.put(self, request)
            return await answer
        finally:
            self._answer = self._heard = self._due = None
            if not self.reusable:
                self.close()

    def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None:
            self.transport.abort()

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._late)

    def _late(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._loop.time() < self._due:
            self._set_timer(self._due)
        else:
            self._fail(asyncio.TimeoutError())

    def _fail(self, error: BaseException) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # -- asyncio -----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)  # for all answers: only a whole one is followed by another

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()  # unsolicited data: the connection is out of sync
            return
        self._silent = False
        self._around += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("the server switches to another protocol")
        except httptools.HttpParserError as error:
            self._refuse(f"the answer is not HTTP: {error}")
        if self._around > MAX_HEAD + 4 * len(self._body):
            self._refuse(f"the headers of the answer are larger than {MAX_HEAD} bytes")

    def _refuse(self, why: str) -> None:
        self._fail(ConnectionFailed(why))
        self.close()

    def eof_received(self) -> None:
        waiting = self._answer is not None and not self._answer.done()
        if waiting and self._in_body and not self._length_known:
            self.on_message_complete()  # a body without a length ends with the connection

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.reusable = False
        kind = NothingCame if self._silent and self._answers else ConnectionFailed
        self._fail(kind(str(error) if error else "the server closed the connection"))

    # -- httptools ---------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self._length_known = self._in_body = False

    def on_headers_complete(self) -> None:
        self._in_body = int(self._parser.get_status_code()) >= 200

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif lowered in (b"content-length", b"transfer-encoding"):
            self._length_known = True
        elif lowered == b"content-encoding":
            self._encoding = value.decode("latin-1").strip().lower()

    def on_body(self, body: bytes) -> None:
        self._around -= len(body)
        if len(self._body) + len(body) > MAX_BODY:
            self._refuse(f"the answer is larger than {MAX_BODY} bytes")
            return
        if not self._body:
            self._body = body
        else:  # one growing buffer: a list of two-byte chunks takes thirty times their size
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        if self._heard is not None and not self._encoding and self._parser.get_status_code() == 200:
            self._heard(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # 100 Continue and its like: the answer is still to come
        self.reusable = bool(self._parser.should_keep_alive()) and self._length_known and not self.closed
        self._answers += 1
        if self._answer is None or self._answer.done():
            return
        try:
            body = unpacked(bytes(self._body), self._encoding)
        except ConnectionFailed as error:
            self._fail(error)
            return
        if self._heard is not None and self._encoding and status == 200:
            self._heard(body)
        self._answer.set_result(HttpReply(status, body, self._retry_after))
