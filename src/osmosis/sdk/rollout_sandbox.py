"""`ctx.sandbox`: where the code that a model wrote runs, so that it reaches nothing of the machine or of the run.

One sandbox per rollout, made when it is first used, shared by the agent, its tools and its grader, and gone with the
rollout. Files stay from one command to the next, processes do not. A command that fails, or that a limit ended, is a
result; an exception means that it never ran. Which boundary it is, whoever runs the rollout decides: an evaluation by
its plan, a rollout server by its variables; on a platform the trusted half of the job runs it, beside the rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

from osmosis.records.sandbox import SANDBOX_VARIABLE, SandboxChoice, SandboxKind
from osmosis.sandbox import EndedBy, Level, LimitedResult, Unavailable
from osmosis.sandbox.session import Kind, Session, SessionCommand, choose

from .calls import in_thread
from .sandbox_door import Door

TIME_S = 60.0
MEMORY_MB = 512
THROUGH_THE_GATE = "gate"
"""The variable's value where the rollout is in a boundary itself, and who runs it makes its sandboxes."""


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
        host = self._open()
        for path, content in files.items():
            host.write(path, _bytes(content))
        done = host.run(command, stop)
        out, err = (stream.decode("utf-8", errors="replace") for stream in (done.stdout, done.stderr))
        return SandboxResult(done.code, out, err, done.ended.value, done.seconds)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Writes a file, and the folders above it."""
        await in_thread(lambda: self._open().write(path, _bytes(content)))

    async def read_file(self, path: str) -> str:
        """A file's text; what is no UTF-8 is replaced."""
        return (await self.read_bytes(path)).decode("utf-8", errors="replace")

    async def read_bytes(self, path: str) -> bytes:
        """A file's content."""
        return await in_thread(lambda: self._open().read(path))

    async def list_files(self) -> list[str]:
        """The paths of all files, from the sandbox's folder on."""
        return await in_thread(lambda: self._open().files())

    async def workdir(self) -> str:
        """The sandbox's folder as commands see it: where they start, and what paths count from."""
        return await in_thread(lambda: self._open().workdir)

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[Sandbox]:
        """Another one of the same kind, empty: for a grader that trusts nothing the agent left behind."""
        made = Sandbox(lambda: self._open().another())
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

    def _open(self) -> Hosted:
        with self._lock:
            if self._closed:
                raise Unavailable("the sandbox of this rollout is gone: the rollout is over")
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
    sandbox = Sandbox(opening)
    token = _current.set(sandbox)
    try:
        yield
    finally:
        _current.reset(token)
        if sandbox.opened:
            await sandbox.close()


@contextlib.asynccontextmanager
async def open_sandbox(kind: SandboxKind = "auto", *, image: str | None = None) -> AsyncIterator[Sandbox]:
    """A sandbox outside of any rollout, which `get_sandbox` finds inside the block: to try a tool in a script or test.

    `kind`: `auto`, `bubblewrap`, `container` (with an `image` that is on this machine), or `none`, which is no boundary
    at all. Raises `Unavailable` when what is wanted does not work here.
    """
    opening = opening_of(SandboxChoice(kind=kind, image=image))
    sandbox = Sandbox(await in_thread(lambda: _ready(opening)))
    token = _current.set(sandbox)
    try:
        yield sandbox
    finally:
        _current.reset(token)
        await sandbox.close()


def opening_of(choice: SandboxChoice) -> Opening:
    """Makes sandboxes on this machine, all of one kind; found out at the first."""
    return _opening(choice.kind, choice.image)


@functools.lru_cache(maxsize=16)
def _opening(kind: SandboxKind, image: str | None) -> Opening:
    choice = SandboxChoice(kind=kind, image=image)
    lock, known = threading.Lock(), list[Kind]()

    def open_one() -> Hosted:
        with lock:
            if not known:
                known.append(choose(choice))
        return Session(known[0])

    return open_one


def opening_from(environ: Mapping[str, str], url: str, key: str | None) -> Opening:
    """For a rollout that a server runs: where its sandbox is made, by the variable of the server's process. `url` and
    `key` are those of the rollout's model endpoint."""
    said = environ.get(SANDBOX_VARIABLE, "auto")
    if said == THROUGH_THE_GATE:
        return lambda: Door(url, key or "")
    named, _, image = said.partition(":")
    kind = next((one for one in get_args(SandboxKind) if one == named), None)
    if kind is None:
        raise Unavailable(
            f"{SANDBOX_VARIABLE}={said} names no sandbox", hint="auto, bubblewrap, container:IMAGE or none"
        )
    return _opening(kind, image or None)


def in_somebody_elses(environ: Mapping[str, str]) -> Opening:
    """For code that is in a sandbox already, such as a trial of Harbor: that one, from the folder it works in."""
    kind = Kind(Level.NONE, environ=dict(environ))
    return lambda: Session(kind, folder=Path.cwd())


def _ready(opening: Opening) -> Opening:
    """The opening, once it has opened one: so that what does not work is said at once."""
    host = opening()
    return lambda: host


def _argv(command: str | Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", command] if isinstance(command, str) else [str(part) for part in command]


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", errors="surrogateescape")
