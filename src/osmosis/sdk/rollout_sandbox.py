"""`ctx.sandbox`: where the code that a model wrote runs, so that it reaches nothing of the machine or of the run.

One sandbox per rollout, made when it is first used, shared by the agent, its tools and its grader, and gone with the
rollout. Files stay from one command to the next, processes do not. A command that fails, or that a limit ended, is a
result; an exception means that it never ran. What makes one is in `sandbox_opening`, and loaded when one is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import SandboxUnavailable
from osmosis.records.sandbox_command import EndedBy, LimitedResult, SessionCommand

from .calls import in_thread

TIME_S = 60.0
MEMORY_MB = 512


class Hosted(Protocol):
    """An open sandbox, wherever it is. Every method waits."""

    @property
    def workdir(self) -> str: ...

    def run(self, command: SessionCommand, stop: threading.Event | None = None) -> LimitedResult: ...

    def write(self, path: str, content: bytes) -> None: ...

    def read(self, path: str) -> bytes: ...

    def files(self) -> list[str]: ...

    def another(self) -> Hosted: ...

    def close(self) -> None: ...


Opening = Callable[[], Hosted]


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a command ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    stdout: str
    stderr: str
    ended: str
    """Who ended it: `itself`, or the limit it met: `time`, `memory`, `processes`, `output`, `disk`."""
    seconds: float

    @property
    def ok(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.exit_code == 0 and self.ended == EndedBy.ITSELF.value

    @property
    def output(self) -> str:
        """Both streams and, when a limit ended it, a line that says so: what a model is to read."""
        said = "\n".join(part.rstrip("\n") for part in (self.stdout, self.stderr) if part)
        return said if self.ended == EndedBy.ITSELF.value else f"{said}\n[ended: limit of {self.ended}]".lstrip("\n")


class Sandbox:
    """The sandbox of one rollout. Safe to use from several tools at once, also from threads."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._host: Hosted | None = None
        self._closed = False
        self._lock = threading.Lock()

    async def run(
        self,
        command: str | Sequence[str],
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout_s: float = TIME_S,
        memory_mb: int = MEMORY_MB,
        network: bool = False,
    ) -> SandboxResult:
        """Runs a program with its arguments, or a shell line, to its end.

        `files` are written first. `env` is all that is added to the sandbox's own variables; nothing of this process
        is inside. `network` reaches outside hosts, not this machine or private addresses. Memory is that of all
        processes of the command together. Raises `OsmosisError` when it cannot run at all. Cancelling ends it.
        """
        asked = SessionCommand(_argv(command), _bytes(stdin), env or {}, cwd, timeout_s, memory_mb, network)
        stop = threading.Event()
        try:
            return await in_thread(self._run, asked, files or {}, stop)
        except asyncio.CancelledError:
            stop.set()
            raise

    def run_blocking(
        self,
        command: str | Sequence[str],
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout_s: float = TIME_S,
        memory_mb: int = MEMORY_MB,
        network: bool = False,
    ) -> SandboxResult:
        """`run` for tools and score functions that are plain functions, which run in threads of their own."""
        asked = SessionCommand(_argv(command), _bytes(stdin), env or {}, cwd, timeout_s, memory_mb, network)
        return self._run(asked, files or {}, None)

    def _run(
        self, command: SessionCommand, files: Mapping[str, str | bytes], stop: threading.Event | None
    ) -> SandboxResult:
        host = self.open()
        for path, content in files.items():
            host.write(path, _bytes(content))
        done = host.run(command, stop)
        out, err = (stream.decode("utf-8", errors="replace") for stream in (done.stdout, done.stderr))
        return SandboxResult(done.code, out, err, done.ended.value, done.seconds)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Writes a file, and the folders above it."""
        await in_thread(lambda: self.open().write(path, _bytes(content)))

    async def read_file(self, path: str) -> str:
        """A file's text; what is no UTF-8 is replaced."""
        return (await self.read_bytes(path)).decode("utf-8", errors="replace")

    async def read_bytes(self, path: str) -> bytes:
        """A file's content."""
        return await in_thread(lambda: self.open().read(path))

    async def list_files(self) -> list[str]:
        """The paths of all files, from the sandbox's folder on."""
        return await in_thread(lambda: self.open().files())

    async def workdir(self) -> str:
        """The sandbox's folder as commands see it: where they start, and what paths count from."""
        return await in_thread(lambda: self.open().workdir)

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[Sandbox]:
        """Another one of the same kind, empty: for a grader that trusts nothing the agent left behind."""
        made = Sandbox(lambda: self.open().another())
        try:
            yield made
        finally:
            await made.close()

    def let_go(self) -> bool:
        """Later calls raise. Whether there is something to `close`: most rollouts never open theirs."""
        with self._lock:
            self._closed = True
            return self._host is not None

    async def close(self) -> None:
        """Removes its files. Later calls raise."""
        with self._lock:
            host, self._host, self._closed = self._host, None, True
        if host is not None:
            await asyncio.shield(in_thread(host.close))

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def opened(self) -> bool:
        """Whether anything was asked of it, and it is still there."""
        return self._host is not None

    def open(self) -> Hosted:
        """Makes it, where that has not been done, which takes its time. Raises `SandboxUnavailable`."""
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("the sandbox of this rollout is gone: the rollout is over")
            if self._host is None:
                self._host = self._opening()
            return self._host


_current: ContextVar[Sandbox | None] = ContextVar("osmosis_sandbox", default=None)


def get_sandbox() -> Sandbox:
    """The sandbox of the rollout that this code belongs to: for tools and score functions, which have no `ctx`.

    Raises `RuntimeError` outside of one; `open_sandbox` makes one for a script or a test.
    """
    found = _current.get()
    if found is None:
        raise RuntimeError("no rollout is running here: use `async with open_sandbox() as sandbox:`")
    return found


def has_sandbox() -> bool:
    """Whether a rollout is running here that has one."""
    found = _current.get()
    return found is not None and not found.closed


def begin(opening: Opening) -> Sandbox:
    """The sandbox of a rollout that begins in this context; whoever calls this closes it."""
    sandbox = Sandbox(opening)
    _current.set(sandbox)
    return sandbox


@contextlib.asynccontextmanager
async def sandbox_while(opening: Opening) -> AsyncIterator[None]:
    """A sandbox for the rollout inside the block, unless one that has it runs already."""
    if has_sandbox():
        yield
        return
    async with within(Sandbox(opening)):
        yield


@contextlib.asynccontextmanager
async def within(sandbox: Sandbox) -> AsyncIterator[None]:
    """The code in the block finds this sandbox; it is closed after it."""
    token = _current.set(sandbox)
    try:
        yield
    finally:
        _current.reset(token)
        if sandbox.opened:
            await sandbox.close()


def _argv(command: str | Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", command] if isinstance(command, str) else [str(part) for part in command]


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", errors="surrogateescape")
