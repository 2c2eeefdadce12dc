"""Requests on their way out: those of one round of the event loop are sent one right after another.

A server that is woken for each goes back to sleep between them, and waking it is dearer than all else about sending.
Sends what it is given, in that order; what becomes of it is the connection's business.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

AT_ONCE = 64
"""So many are sent without waiting for the end of the round: a server is not to stand idle for a long one."""


class Sender(Protocol):
    """A connection, as far as sending goes."""

    closed: bool
    transport: Any


class Outbox:
    """Of the connections of one event loop to one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: list[tuple[Sender, bytes]] = []

    def put(self, sender: Sender, request: bytes) -> None:
        """Sends the request before the event loop waits for anything, unless the sender is closed by then."""
        waiting = self._waiting
        waiting.append((sender, request))
        if len(waiting) == 1:
            self.loop.call_soon(self._send)
        elif len(waiting) == AT_ONCE:
            self._send()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sender, request in waiting:
            if not sender.closed:
                sender.transport.write(request)
