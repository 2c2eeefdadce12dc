"""A rollout server as a process: started in a sandbox on a free port, waited for until it is healthy or the time is up,
its output handed on line by line, its death noticed, and everything it started ended at the close. It restarts nothing
and interprets no output.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from osmosis.base.processes import lines_of
from osmosis.errors import OsmosisError, SandboxUnavailable
from osmosis.llm.connections import Connections
from osmosis.llm.wire import exchange
from osmosis.records.sandbox_command import EndedBy
from osmosis.records.wire import PORT_VARIABLE
from osmosis.sandbox import Box, Network, Policy, start

TAIL_LINES = 60
LOOK_S = 0.02
"""How often a server that starts is asked whether it is healthy."""
PATIENCE_WITH_OUTPUT = 16
"""What prints so many times its limit is ended: reading it is work, too."""
OLDER_PORT_VARIABLE = "ROLLOUT_PORT"
"""The name that older rollouts read."""
HEALTH_TIMEOUT_S = 5.0
Begin = Callable[[Sequence[str], Policy], Awaitable[Box]]
"""Starts a command in a sandbox. Raises as `osmosis.sandbox.start` does."""


class ServerStartError(OsmosisError):
    """The rollout server did not come up; `details["output"]` holds the end of what it printed."""

    code = "ROLLOUT_SERVER"


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class RolloutServerProcess:
    """One rollout server. `log` gets each line of its output, without the newline; redaction is the caller's."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        *,
        log: Callable[[str], None],
        health_timeout_s: float = 90.0,
        policy: Policy | None = None,
        begin: Begin = start,
    ) -> None:
        """`policy` is its sandbox, whose environment and folder are the ones given here; None: level 0. `begin` starts
        the command in it, or brings a process that waited for it."""
        self.command = list(command)
        self.cwd = cwd
        self.environ = dict(environ)
        self.health_timeout_s = health_timeout_s
        self.url = ""
        self._port = 0
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._log = log
        self._policy = policy or Policy()
        self._begin = begin
        self._box: Box | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._box.pid if self._box else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._box.exit_code if self._box else None

    @property
    def over_limit(self) -> EndedBy | None:
        """The limit of its sandbox that ended it."""
        return self._box.over_limit if self._box else None

    @property
    def listeners(self) -> Mapping[tuple[str, int], socket.socket]:
        """Where its network is its own: for each of the policy's `listen` the socket on which to answer it."""
        return self._box.listeners if self._box else {}

    @property
    def connecting(self) -> Callable[[], socket.socket] | None:
        """Makes sockets that reach it, where its network is its own; None: it is on the host's loopback."""
        return self._box.connecting if self._box and self._box.network is not Network.SHARED else None

    async def start(self) -> str:
        """Starts the server and returns its URL once `/health` answers; `ServerStartError` otherwise."""
        self._port = free_port()
        port = str(self._port)
        self.url = f"http://127.0.0.1:{port}"
        environ = {OLDER_PORT_VARIABLE: port, **self.environ, PORT_VARIABLE: port, "PYTHONUNBUFFERED": "1"}
        try:
            self._box = await self._begin(self.command, replace(self._policy, environ=environ, cwd=self.cwd))
        except SandboxUnavailable as exc:
            raise ServerStartError(f"the rollout server's sandbox: {exc.message}", hint=exc.hint) from exc
        except OSError as exc:
            raise ServerStartError(
                f"cannot start the rollout server: {self.command[0]}: {exc.strerror or exc}",
                hint=f"check that {self.command[0]} exists and that {self.cwd} is a folder",
            ) from exc
        self._reader = asyncio.create_task(self._read(self._box))
        try:
            await self._wait_healthy(self._box)
        except BaseException:
            await self.stop(grace_s=1.0)
            raise
        return self.url

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """SIGTERM, and after `grace_s` seconds the end of everything it started; idempotent."""
        if self._box is None:
            return
        self._box.ask_to_end()
        try:
            await asyncio.wait_for(self._box.wait(), grace_s)
        except asyncio.TimeoutError:
            pass
        await self._box.close()
        await self._read_rest()

    async def _read_rest(self) -> None:
        """The last words of a process that has ended."""
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=1.0)
            self._reader.cancel()

    async def wait_died(self) -> int:
        """Returns the exit code once the process has ended, whoever ended it."""
        assert self._box is not None
        return await self._box.wait()

    def last_output(self, lines: int = 15) -> str:
        return "\n".join(list(self.tail)[-lines:])

    def _end(self) -> str:
        last = next((line.strip() for line in reversed(self.tail) if line.strip()), "")
        return f": {last[:300]}" if last else ""

    async def _wait_healthy(self, box: Box) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.health_timeout_s
        died = asyncio.create_task(box.wait())
        connections = Connections("127.0.0.1", self._port, connecting=self.connecting)
        try:
            while loop.time() < until:
                if died.done():
                    await self._read_rest()
                    raise ServerStartError(
                        f"the rollout server ended with exit code {self.exit_code} before it was healthy{self._end()}",
                        hint="run its main.py in a terminal to see the error",
                        exit_code_of_server=self.exit_code,
                        output=self.last_output(),
                    )
                if await self._healthy(connections):
                    return
                await asyncio.wait({died}, timeout=LOOK_S)
        finally:
            died.cancel()
            connections.close()
        raise ServerStartError(
            f"the rollout server did not answer {self.url}/health within {self.health_timeout_s:g} s{self._end()}",
            hint=f"its main.py must serve on the port in {PORT_VARIABLE} and answer GET /health",
            output=self.last_output(),
        )

    async def _healthy(self, connections: Connections) -> bool:
        request = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Length: 0\r\n\r\n"
        try:
            return (await exchange(connections, request.encode(), HEALTH_TIMEOUT_S)).status == 200
        except (asyncio.TimeoutError, OSError):
            return False

    async def _read(self, box: Box) -> None:
        most, printed = self._policy.limits.output_bytes, 0
        async for text in lines_of(box.stdout):
            printed += len(text) + 1
            if most is None or printed <= most:
                self.tail.append(text)
                self._log(text)
            elif printed - len(text) - 1 <= most:
                self._log(f"it has printed more than {most} bytes: the rest of its output is dropped")
            elif printed > most * PATIENCE_WITH_OUTPUT:
                self.tail.append(f"it printed more than {most * PATIENCE_WITH_OUTPUT} bytes")
                box.end_over(EndedBy.OUTPUT)
