"""As many connections to one endpoint as help: at first one per call, beyond `AT_ONCE` only while we keep up.

A thousand calls in flight need a thousand connections when the endpoint takes its time over each. When it answers
faster than this process can ask, more connections only cost: each is memory, a handshake and cold caches on both
sides, and a call waits for its turn either way. So calls beyond the first `AT_ONCE` take over a connection that comes
back, and new ones are opened as soon as the event loop has time to spare, twice as many with every look.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic

from .connection import Connection, ConnectionFailed
from .outbox import Outbox

CONNECT_TIMEOUT_S = 10.0
IDLE_S = 60.0
"""A connection that was idle for longer is not used again: the other side is about to close it."""
AT_ONCE = 64
"""Connections that are opened whenever a call wants one."""
LOOK_S = 0.005
"""How often calls that wait are looked at."""
CALM_S = 0.002
"""An event loop that comes to its timer within this time has time to spare (timers are rounded up to 1 ms)."""
CALM_LOOKS = 4


class Connections:
    """To one host and port. For one event loop at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        at_once: float = AT_ONCE,
        connecting: Callable[[], socket.socket] | None = None,
    ) -> None:
        """`connecting` makes the sockets, for a server in a network of its own."""
        self._host, self._port = host, port
        self._at_once = at_once
        self._connecting = connecting
        self._idle: list[Connection] = []
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        """Each is given a connection, or None: permission to open one."""
        self._open = 0
        self._calm = 0
        self._look: asyncio.TimerHandle | None = None
        self._outbox: Outbox | None = None

    def idle(self) -> Connection | None:
        """A connection that waits for a call, as `take` gives one; without waiting."""
        return self._reuse() if self._idle else None

    async def take(self) -> Connection:
        """A connection that is the caller's until `give_back`; raises `OSError` when none can be opened."""
        loop = asyncio.get_running_loop()
        connection = self._reuse()
        if connection is None and self._open >= self._at_once:
            connection = await self._wait(loop)
            if connection is not None and connection.closed:  # by the server, while it was handed on
                connection = None
        elif connection is None:
            self._open += 1
        return connection or await self._connect(loop)

    def give_back(self, connection: Connection) -> None:
        """After the call, whatever became of it."""
        if not connection.reusable:
            connection.close()
            self._gone()
        elif not self._waiting or not self._hand_on(connection):
            connection.idle_since = monotonic()
            self._idle.append(connection)

    def close(self) -> None:
        """Of what is idle; calls that are under way end by themselves."""
        for connection in self._idle:
            connection.close()
        self._open -= len(self._idle)
        self._idle.clear()

    def _reuse(self) -> Connection | None:
        now = monotonic()
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and now - connection.idle_since < IDLE_S:
                return connection
            connection.close()
            self._open -= 1
        return None

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        turn: asyncio.Future[Connection | None] = loop.create_future()
        self._waiting.append(turn)
        if self._look is None:
            self._look_later(loop)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                given = turn.result()
                if given is None:
                    self._gone()
                else:
                    self.give_back(given)
            raise

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes as the connection is there.
        opening = loop.create_task(self._opened(loop))
        try:
            if not (await asyncio.wait({opening}, timeout=CONNECT_TIMEOUT_S))[0]:
                raise ConnectionFailed(f"could not connect within {CONNECT_TIMEOUT_S:g} s")
            return opening.result()
        except BaseException:
            opening.cancel()
            opening.add_done_callback(_unwanted)
            self._gone()
            raise

    async def _opened(self, loop: asyncio.AbstractEventLoop) -> Connection:
        outbox = self._outbox
        if outbox is None or outbox.loop is not loop:
            outbox = self._outbox = Outbox(loop)
        if self._connecting is None:
            _, connection = await loop.create_connection(lambda: Connection(outbox), self._host, self._port)
            return connection
        plug = self._connecting()
        try:
            plug.setblocking(False)
            await loop.sock_connect(plug, (self._host, self._port))
        except BaseException:
            plug.close()
            raise
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does not where others made the socket
        _, connection = await loop.create_connection(lambda: Connection(outbox), sock=plug)
        return connection

    def _gone(self) -> None:
        """One connection less; a waiting call may open another."""
        self._open -= 1
        if self._open < self._at_once and self._hand_on(None):
            self._open += 1

    def _hand_on(self, connection: Connection | None) -> bool:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return True
        return False

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look = loop.call_later(LOOK_S, self._look_at, loop, loop.time() + LOOK_S)

    def _look_at(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._calm = self._calm + 1 if loop.time() - due < CALM_S else 0
        if self._calm >= CALM_LOOKS:
            for _ in range(self._open):
                if not self._hand_on(None):
                    break
                self._open += 1
        if self._waiting:
            self._look_later(loop)
        else:
            self._look, self._calm = None, 0


def _unwanted(opening: asyncio.Task[Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
