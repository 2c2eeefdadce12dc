"""Run a rollout server in a sandbox on a free port; everything it started ends with it, nothing is restarted."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

import aiohttp

from osmosis.base.processes import iterate_lines
from osmosis.errors import OsmosisError, SandboxUnavailable
from osmosis.records.protocol.messages import PORT_VARIABLE
from osmosis.records.sandbox import EndedBy
from osmosis.sandbox import Box, Network, Policy, start
from osmosis.serve.http import open_session

TAIL_LINES = 60
POLL_S = 0.02
OUTPUT_TOLERANCE = 16
LINE_BYTES = 64  # Bytes of a line in a log, beside its text
OLDER_PORT_VARIABLE = "ROLLOUT_PORT"
HEALTH_TIMEOUT_S = 5.0


class ServerStartError(OsmosisError):
    """The rollout server did not start; `details["output"]` holds the end of what it printed."""

    code = "ROLLOUT_SERVER"


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(eq=False, repr=False)
class RolloutServerProcess:
    """One rollout server. `log` gets each line of its output, without the newline; redaction is the caller's."""

    command: Sequence[str]
    cwd: Path
    environ: Mapping[str, str]
    _: KW_ONLY
    log: Callable[[str], None]
    health_timeout_s: float = 90.0
    poll_s: float = POLL_S
    policy: Policy = field(default_factory=Policy)  # its sandbox, with the environment and folder given here
    name: str = "the rollout server"
    port: int | None = None  # None: a free one at each start
    started: Callable[[int], None] | None = None
    """Called with the process group, so that a killed job's successor can end it."""
    url: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _box: Box | None = None
    _reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._box.pid if self._box else None

    @property
    def exit_code(self) -> int | None:
        return self._box.exit_code if self._box else None

    @property
    def over_limit(self) -> EndedBy | None:
        return self._box.over_limit if self._box else None

    @property
    def listeners(self) -> Mapping[tuple[str, int], socket.socket]:
        return self._box.listeners if self._box else {}

    @property
    def connecting(self) -> Callable[[], socket.socket] | None:
        return self._box.connecting if self._box and self._box.network is not Network.SHARED else None

    async def start(self) -> str:
        """Start the server; return its URL once `/health` answers, raise `ServerStartError` otherwise."""
        port = str(self.port or free_port())
        self.url = f"http://127.0.0.1:{port}"
        environ = {OLDER_PORT_VARIABLE: port, **self.environ, PORT_VARIABLE: port, "PYTHONUNBUFFERED": "1"}
        try:
            self._box = await start(self.command, replace(self.policy, environ=environ, cwd=self.cwd))
        except SandboxUnavailable as exc:
            raise ServerStartError(f"{self.name}: its sandbox: {exc.message}", hint=exc.hint) from exc
        except OSError as exc:
            message = f"cannot start {self.name}: {self.command[0]}: {exc.strerror or exc}"
            hint = f"check that {self.command[0]} exists and that {self.cwd} is a folder"
            raise ServerStartError(message, hint=hint) from exc
        if self.started is not None:
            self.started(self._box.pid)
        self._reader = asyncio.create_task(self._read(self._box))
        try:
            await self._wait_healthy(self._box)
        except BaseException:
            await self.stop(grace_s=1.0)
            raise
        return self.url

    async def stop(self, *, grace_s: float = 10.0) -> None:
        if self._box is None:
            return
        self._box.ask_to_end()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._box.wait(), grace_s)
        await self._box.close()
        await self._drain_output()

    async def _drain_output(self) -> None:
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=1.0)
            self._reader.cancel()

    async def wait_died(self) -> int:
        assert self._box is not None
        return await self._box.wait()

    def last_output(self, lines: int = 15) -> str:
        return "\n".join(list(self.tail)[-lines:])

    def _last_line(self) -> str:
        last = next((line.strip() for line in reversed(self.tail) if line.strip()), "")
        return f": {last[:300]}" if last else ""

    async def _wait_healthy(self, box: Box) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.health_timeout_s
        died = asyncio.create_task(box.wait())
        try:
            async with open_session(connecting=self.connecting) as session:
                while loop.time() < until:
                    if died.done():
                        await self._drain_output()
                        raise ServerStartError(
                            f"{self.name} ended with exit code {self.exit_code} "
                            f"before it was healthy{self._last_line()}",
                            hint="run its main.py in a terminal to see the error",
                            exit_code_of_server=self.exit_code,
                            output=self.last_output(),
                        )
                    if await self._is_healthy(session):
                        return
                    await asyncio.wait({died}, timeout=self.poll_s)
        finally:
            died.cancel()
        message = f"{self.name} did not answer {self.url}/health within {self.health_timeout_s:g} s{self._last_line()}"
        hint = f"its main.py must serve on the port in {PORT_VARIABLE} and answer GET /health"
        raise ServerStartError(message, hint=hint, output=self.last_output())

    async def _is_healthy(self, session: aiohttp.ClientSession) -> bool:
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
        try:
            async with session.get(f"{self.url}/health", timeout=timeout, allow_redirects=False) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return False

    async def _read(self, box: Box) -> None:
        most, printed = self.policy.limits.output_bytes, 0
        async for text in iterate_lines(box.stdout):
            printed += len(text) + LINE_BYTES
            if most is None or printed <= most:
                self.tail.append(text)
                self.log(text)
            elif printed - len(text) - LINE_BYTES <= most:
                self.log(f"it has printed more than {most} bytes: the rest of its output is dropped")
            elif printed > most * OUTPUT_TOLERANCE:
                self.tail.append(f"it printed more than {most * OUTPUT_TOLERANCE} bytes")
                box.end_over(EndedBy.OUTPUT)
