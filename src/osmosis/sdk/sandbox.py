"""`ctx.sandbox`: runs code that a model wrote, so that it reaches nothing of the machine or of the run."""

import asyncio
import base64
import contextlib
import functools
import http.client
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, get_args
from urllib.parse import urlsplit

from osmosis.errors import OsmosisError, SandboxUnavailable
from osmosis.records.sandbox import (
    SANDBOX_VARIABLE,
    EndedBy,
    LimitedResult,
    SandboxAnswer,
    SandboxChoice,
    SandboxKind,
    SandboxOrder,
    SessionCommand,
)
from osmosis.sandbox import Level
from osmosis.sandbox.session import Session, SessionKind, choose_kind
from osmosis.sdk.user_code import in_thread

TIME_S = 60.0
MEMORY_MB = 512


Hosted: TypeAlias = "Session | GateSandbox"
Opening = Callable[[], Hosted]


@dataclass(frozen=True, slots=True)
class SandboxResult:
    exit_code: int  # exit code; negative: the signal that ended it
    stdout: str
    stderr: str
    ended: str  # `itself`, or the limit that ended it: `time`, `memory`, `processes`, `output`, `disk`
    seconds: float

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.ended == EndedBy.ITSELF.value

    @property
    def output(self) -> str:
        """Return both streams and, when a limit ended it, a line that names it: for a model to read."""
        text = "\n".join(part.rstrip("\n") for part in (self.stdout, self.stderr) if part)
        return text if self.ended == EndedBy.ITSELF.value else f"{text}\n[ended: limit of {self.ended}]".lstrip("\n")


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
        """Run a program with its arguments, or a shell line, to its end.

        `files` are written first. `env` is all that is added to the sandbox's own variables; nothing of this process
        is inside. `network` reaches outside hosts, not this machine or private addresses. Memory is that of all
        processes of the command together. Raise `OsmosisError` when it cannot run at all. Cancelling ends it."""
        session_command = SessionCommand(_argv(command), _bytes(stdin), env or {}, cwd, timeout_s, memory_mb, network)
        stop = threading.Event()
        try:
            return await in_thread(self._run, session_command, files or {}, stop)
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
        """Run as `run` does, for tools and score functions that are plain functions, in threads of their own."""
        session_command = SessionCommand(_argv(command), _bytes(stdin), env or {}, cwd, timeout_s, memory_mb, network)
        return self._run(session_command, files or {}, None)

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
        """Write a file, and the folders above it."""
        await in_thread(lambda: self.open().write(path, _bytes(content)))

    async def read_file(self, path: str) -> str:
        """Return a file's text; bytes that are not UTF-8 are replaced."""
        return (await self.read_bytes(path)).decode("utf-8", errors="replace")

    async def read_bytes(self, path: str) -> bytes:
        return await in_thread(lambda: self.open().read(path))

    async def list_files(self) -> list[str]:
        """List the paths of all files, relative to the sandbox's folder."""
        return await in_thread(lambda: self.open().files())

    async def workdir(self) -> str:
        """Return the sandbox's folder as commands see it: where they start."""
        return await in_thread(lambda: self.open().workdir)

    @contextlib.asynccontextmanager
    async def fresh(self) -> "AsyncIterator[Sandbox]":
        """Open another, empty sandbox of the same kind, for a grader that does not trust the agent's files."""
        sandbox = Sandbox(lambda: self.open().another())
        try:
            yield sandbox
        finally:
            await sandbox.close()

    def detach(self) -> bool:
        with self._lock:
            self._closed = True
            return self._host is not None

    async def close(self) -> None:
        """Remove its files. Later calls raise."""
        with self._lock:
            host, self._host, self._closed = self._host, None, True
        if host is not None:
            await asyncio.shield(in_thread(host.close))

    @property
    def opened(self) -> bool:
        return self._host is not None

    def open(self) -> Hosted:
        """Return the open sandbox, made at the first call. Blocks; raise `SandboxUnavailable`."""
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("the sandbox of this rollout is gone: the rollout is over")
            if self._host is None:
                self._host = self._opening()
            return self._host


_current: ContextVar[Sandbox | None] = ContextVar("osmosis_sandbox", default=None)


def get_sandbox() -> Sandbox:
    """Return the sandbox of the rollout that this code belongs to: for tools and score functions, which have no `ctx`.
    Raise `RuntimeError` outside of one."""
    sandbox = _current.get()
    if sandbox is None:
        raise RuntimeError("no rollout is running here: use `async with open_sandbox() as sandbox:`")
    return sandbox


def begin_sandbox(opening: Opening) -> Sandbox:
    sandbox = Sandbox(opening)
    _current.set(sandbox)
    return sandbox


@contextlib.asynccontextmanager
async def sandbox_while(opening: Opening) -> AsyncIterator[None]:
    sandbox = _current.get()
    if sandbox is not None and not sandbox._closed:
        yield
        return
    async with use_sandbox(Sandbox(opening)):
        yield


@contextlib.asynccontextmanager
async def use_sandbox(sandbox: Sandbox) -> AsyncIterator[None]:
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


GATE = "gate"  # Value of the variable where the rollout is itself isolated, and the job makes its sandboxes


@contextlib.asynccontextmanager
async def open_sandbox(kind: SandboxKind = "auto", *, image: str | None = None) -> AsyncIterator[Sandbox]:
    """Open a sandbox outside of any rollout, which `get_sandbox` finds inside the block: for a script or test.

    `kind`: `auto`, `bubblewrap`, `container` (with an `image` that is on this machine), or `none`, which is no boundary
    at all. Raise `SandboxUnavailable` when it does not work here."""
    sandbox = Sandbox(opening_of(SandboxChoice(kind=kind, image=image)))
    await in_thread(sandbox.open)
    async with use_sandbox(sandbox):
        yield sandbox


def opening_of(choice: SandboxChoice) -> Opening:
    return _opening(choice.kind, choice.image)


@functools.lru_cache(maxsize=16)
def _opening(kind: SandboxKind, image: str | None) -> Opening:
    choice = SandboxChoice(kind=kind, image=image)
    lock, chosen = threading.Lock(), list[SessionKind]()

    def open_one() -> Hosted:
        with lock:
            if not chosen:
                chosen.append(choose_kind(choice))
        return Session(chosen[0])

    return open_one


def opening_from(environ: Mapping[str, str], url: str, key: str | None) -> Opening:
    setting = environ.get(SANDBOX_VARIABLE, "auto")
    if setting == GATE:
        return lambda: GateSandbox(url, key or "")
    named, _, image = setting.partition(":")
    kind = next((kind_name for kind_name in get_args(SandboxKind) if kind_name == named), None)
    if kind is None:
        raise SandboxUnavailable(
            f"{SANDBOX_VARIABLE}={setting} names no sandbox", hint="auto, bubblewrap, container:IMAGE or none"
        )
    return _opening(kind, image or None)


def opening_in_place(environ: Mapping[str, str]) -> Opening:
    kind = SessionKind(Level.NONE, environ=dict(environ))
    return lambda: Session(kind, folder=Path.cwd())


WAIT_FOR_TURN_S = 120.0  # Seconds beyond the time of the command: it may wait for its turn


class GateSandbox:
    def __init__(self, url: str, key: str, name: str = "") -> None:
        self._parts = urlsplit(f"{url.rstrip('/')}/sandbox")
        self._url, self._key = url, key
        self._name = name or secrets.token_hex(8)
        self._workdir = ""

    @property
    def workdir(self) -> str:
        if not self._workdir:
            self._workdir = self._ask(SandboxOrder(do="open", sandbox=self._name)).workdir
        return self._workdir

    def run(self, command: SessionCommand, stop: threading.Event | None = None) -> LimitedResult:
        order = SandboxOrder(
            do="run",
            sandbox=self._name,
            argv=list(command.argv),
            content=encode_bytes(command.stdin),
            environ=dict(command.environ),
            path=command.cwd,
            time_s=command.time_s,
            memory_mb=command.memory_mb,
            network=command.network,
        )
        done = self._ask(order, command.time_s + WAIT_FOR_TURN_S, stop)
        out, err = base64.b64decode(done.stdout), base64.b64decode(done.stderr)
        return LimitedResult(done.exit_code, out, err, EndedBy(done.ended), done.seconds)

    def write(self, path: str, content: bytes) -> None:
        self._ask(SandboxOrder(do="write", sandbox=self._name, path=path, content=encode_bytes(content)))

    def read(self, path: str) -> bytes:
        return base64.b64decode(self._ask(SandboxOrder(do="read", sandbox=self._name, path=path)).content)

    def files(self) -> list[str]:
        return self._ask(SandboxOrder(do="list", sandbox=self._name)).files

    def another(self) -> "GateSandbox":
        return GateSandbox(self._url, self._key)

    def close(self) -> None:
        self._ask(SandboxOrder(do="close", sandbox=self._name))

    def _ask(
        self, order: SandboxOrder, time_s: float = WAIT_FOR_TURN_S, stop: threading.Event | None = None
    ) -> SandboxAnswer:
        connection_class = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = connection_class(self._parts.hostname or "", self._parts.port, timeout=time_s)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        ended = threading.Event()
        if stop is not None:
            # The other side ends the command when nobody listens any more.
            threading.Thread(target=_hang_up, args=(connection, stop, ended), daemon=True).start()
        try:
            connection.request("POST", self._parts.path, order.model_dump_json(exclude_none=True), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            raise SandboxUnavailable(f"the sandbox does not answer: {type(problem).__name__}: {problem}") from problem
        finally:
            ended.set()
            connection.close()
        if answer.status == 404:
            raise SandboxUnavailable("no sandbox is offered to this rollout", hint="run it with osmosis 1.2 or later")
        if answer.status != 200:
            raise SandboxUnavailable(
                f"the sandbox answered with status {answer.status}: {body[:300].decode(errors='replace')}"
            )
        parsed = SandboxAnswer.model_validate_json(body)
        if parsed.problem is not None:
            refused = SandboxUnavailable if parsed.unavailable else OsmosisError
            raise refused(parsed.problem, hint=parsed.hint)
        return parsed


def _hang_up(connection: http.client.HTTPConnection, stop: threading.Event, ended: threading.Event) -> None:
    while not ended.wait(0.1):
        if stop.is_set():
            with contextlib.suppress(OSError, AttributeError):  # it is over, or not there yet
                connection.sock.shutdown(socket.SHUT_RDWR)
            return


def encode_bytes(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
