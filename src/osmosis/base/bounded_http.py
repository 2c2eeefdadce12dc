"""The connections of our HTTP servers: uvicorn's, with limits on what an unknown caller can hold.

A connection that sends nothing, or next to nothing, is closed, within headers and within a body; so is one whose
answer nobody reads. Headers, chunk frames and trailers are bounded. Says nothing about bodies: their size is the
application's to limit, because only it knows who asks. A package that serves passes the class to uvicorn
(`http=BoundedHttp`); nothing else imports this module, for it brings uvicorn.
"""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LOOK_S = 10.0
"""How often a connection is looked at."""
PATIENCE_S = 60.0
"""How long a request, or the reading of an answer, may make next to no progress."""
LEAST_BYTES = 256
"""What counts as progress between two looks."""
MAX_HEAD = 64 * 1024
"""Bytes of a request line and its headers."""
FRAMES_PER_BODY = 4
"""Chunked bodies may carry this many bytes of frames for each byte of body, beyond `MAX_HEAD`."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """One connection. Subclasses change the figures for tests."""

    look_s = LOOK_S
    patience_s = PATIENCE_S

    _receiving = True
    """A request is on its way: from the first byte of the connection to the end of each message."""
    _frame_bytes = 0
    _body_bytes = 0
    _arrived = 0
    _still_s = 0.0
    _unread = 0
    _drained = True
    """The reader took something since the last look."""
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
        """Every `look_s`: close what stands still."""
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
        """Say so unless an answer has begun, and end the connection without waiting for its reader."""
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(answer)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
