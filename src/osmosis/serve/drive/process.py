"""A rollout server as a process: started in its own process group on a free port, waited for until it is healthy or
the time is up, its output handed on line by line, its death noticed, and its whole group ended at the close. It
restarts nothing and interprets no output.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

from osmosis.base.processes import lines_of, signal_group
from osmosis.errors import OsmosisError
from osmosis.records.wire import PORT_VARIABLE

TAIL_LINES = 60
WATCH_EVERY_S = 0.2


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
    ) -> None:
        self.command = list(command)
        self.cwd = cwd
        self.environ = dict(environ)
        self.health_timeout_s = health_timeout_s
        self.url = ""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._died = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.returncode if self._process else None

    async def start(self) -> str:
        """Starts the server and returns its URL once `/health` answers; `ServerStartError` otherwise."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        environ = {**self.environ, PORT_VARIABLE: str(port), "PYTHONUNBUFFERED": "1"}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                cwd=self.cwd,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                limit=1024 * 1024,
            )
        except OSError as exc:
            raise ServerStartError(
                f"cannot start the rollout server: {self.command[0]}: {exc.strerror or exc}",
                hint=f"check that {self.command[0]} exists and that {self.cwd} is a folder",
            ) from exc
        self._reader = asyncio.create_task(self._read())
        self._watcher = asyncio.create_task(self._watch())
        try:
            await self._wait_healthy()
        except BaseException:
            await self.stop(grace_s=1.0)
            raise
        return self.url

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """SIGTERM to the whole group, SIGKILL after `grace_s` seconds; idempotent."""
        process = self._process
        if process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._died.wait(), grace_s)
        except asyncio.TimeoutError:
            pass
        self._signal(signal.SIGKILL)  # the leader may be gone while children of it live on
        await self._died.wait()
        await self._read_rest()

    async def _read_rest(self) -> None:
        """The last words of a process that has ended."""
        if self._reader is not None:
            # A child that escaped into another group may hold the pipe open for ever.
            await asyncio.wait([self._reader], timeout=1.0)
            self._reader.cancel()

    async def wait_died(self) -> int:
        """Returns the exit code once the process has ended, whoever ended it."""
        await self._died.wait()
        assert self._process is not None
        return self._process.returncode if self._process.returncode is not None else -1

    def last_output(self, lines: int = 15) -> str:
        return "\n".join(list(self.tail)[-lines:])

    def _end(self) -> str:
        last = next((line.strip() for line in reversed(self.tail) if line.strip()), "")
        return f": {last[:300]}" if last else ""

    async def _wait_healthy(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.health_timeout_s
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while loop.time() < until:
                if self._died.is_set():
                    await self._read_rest()
                    raise ServerStartError(
                        f"the rollout server ended with exit code {self.exit_code} before it was healthy{self._end()}",
                        hint="run its main.py in a terminal to see the error",
                        exit_code_of_server=self.exit_code,
                        output=self.last_output(),
                    )
                if await self._healthy(session):
                    return
                try:
                    await asyncio.wait_for(self._died.wait(), 0.05)
                except asyncio.TimeoutError:
                    pass
        raise ServerStartError(
            f"the rollout server did not answer {self.url}/health within {self.health_timeout_s:g} s{self._end()}",
            hint=f"its main.py must serve on the port in {PORT_VARIABLE} and answer GET /health",
            output=self.last_output(),
        )

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/health") as reply:
                return reply.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return False

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for text in lines_of(self._process.stdout):
            self.tail.append(text)
            self._log(text)

    async def _watch(self) -> None:
        """Notices the end of the process itself: in some Python versions `wait` also waits for every child that
        holds its output open."""
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        while self._process.returncode is None:
            await asyncio.wait({ended}, timeout=WATCH_EVERY_S)
        self._died.set()
        ended.cancel()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        signal_group(self._process.pid, number)
