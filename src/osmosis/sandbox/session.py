import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from osmosis.base.processes import start_token
from osmosis.base.safe_open import FILE, are_parts, folder_at, is_plain, walk
from osmosis.errors import SandboxUnavailable, ValidationError
from osmosis.records.sandbox import LimitedResult, SandboxChoice, SessionCommand
from osmosis.sandbox.container import get_engine, remove_leftovers
from osmosis.sandbox.namespaces import probe, python_folders
from osmosis.sandbox.policy import WORK, Level, Limits, Network, Policy
from osmosis.sandbox.process import run

MOST_FILES = 10_000
AT_ONCE = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
PREFIX = "osmosis-sandbox-"
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    memory_mb: int = 8192
    time_s: float = 3600.0
    processes: int = 256
    output_bytes: int = 1024 * 1024
    file_mb: int = 1024
    disk_mb: int = 1024
    read_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionKind:
    level: Level = Level.NONE
    image: str = ""
    python: Path | None = None
    network: bool = True
    most: SessionLimits = field(default_factory=SessionLimits)
    environ: Mapping[str, str] | None = None
    parent: Path | None = None


def choose_kind(
    wanted: SandboxChoice,
    *,
    python: Path | None = None,
    network: bool = True,
    most: SessionLimits | None = None,
    parent: Path | None = None,
) -> SessionKind:
    """Choose the kind for `wanted` on this machine. Raise `SandboxUnavailable`, with what to do."""
    level = _level(wanted)
    if level is Level.CONTAINER:
        get_engine().require(wanted.image or "")
        remove_leftovers()
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        maker = folder.name.removeprefix(PREFIX).partition("-")[0]
        if maker.isdigit() and not start_token(int(maker)) and folder.stat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
    interpreter = None if level is Level.CONTAINER else python or Path(sys.executable)
    return SessionKind(level, wanted.image or "", interpreter, network, most or SessionLimits(), parent=parent)


def _level(choice: SandboxChoice) -> Level:
    if choice.kind == "none":
        return Level.NONE
    if choice.kind == "container" or (choice.kind == "auto" and choice.image):
        if not choice.image:
            hint = "--sandbox-image python:3.12-slim (sandbox_image)"
            raise SandboxUnavailable("a sandbox in a container needs an image", hint=hint)
        return Level.CONTAINER
    abilities = probe()
    if abilities.level is Level.NONE:
        raise SandboxUnavailable(
            f"no sandbox works on this machine: {abilities.reason}",
            hint=f"{abilities.fix}; or name the image of a container (--sandbox-image IMAGE), "
            "or run code with your own rights (--sandbox none)",
        )
    return abilities.level


class Session:
    """One open sandbox. Its methods block; `close` removes its files."""

    def __init__(self, kind: SessionKind, *, folder: Path | None = None) -> None:
        """Use `folder`, which exists and stays: for level 0 inside somebody else's boundary."""
        self.kind = kind
        self._outer: Path | None = None
        if folder is None:
            self._outer = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=kind.parent))
            folder = self._outer / "work"
            folder.mkdir()
            folder.chmod(0o777)  # a container's user is another one; nobody else comes as far as this
        self.folder = folder

    @property
    def workdir(self) -> str:
        return str(self.folder) if self.kind.level < Level.NAMESPACES else WORK

    def run(self, command: SessionCommand, stop: threading.Event | None = None) -> LimitedResult:
        if not command.argv or any("\0" in part for part in command.argv):
            raise ValidationError("a command is a list of strings without NUL, the first of them a program")
        most = self.kind.most
        confined = self.kind.level in (Level.LANDLOCK, Level.NAMESPACES)
        policy = Policy(
            level=self.kind.level,
            work=self.folder,
            cwd=Path(self.workdir, *self._parts(command.cwd)),
            image=self.kind.image,
            read=python_folders(self.kind.python) if confined and self.kind.python is not None else (),
            network=self._network(command.network),
            environ={**self._environ(), **command.environ},
            limits=Limits(
                memory_mb=min(command.memory_mb, most.memory_mb),
                wall_s=min(command.time_s, most.time_s),
                processes=most.processes,
                output_bytes=most.output_bytes,
                file_mb=most.file_mb,
                disk_mb=None if self._outer is None else most.disk_mb,
            ),
        )
        with AT_ONCE:
            return run(command.argv, policy, input=command.stdin, stop=stop)

    def write(self, path: str, content: bytes) -> None:
        """Write a file; folders are made as needed. Raise `ValidationError` for a path that leads elsewhere."""
        if len(content) > self.kind.most.read_bytes:
            most = self.kind.most.read_bytes
            raise ValidationError(f"{path} has {len(content)} bytes; at most {most} can be written")
        *folders, name = self._parts(path) or [""]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with folder_at(self.folder, folders, create_mode=0o777) as folder:
                # A new file each time: the old one may be a link, or a second name of another.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                with open(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
                    os.fchmod(file.fileno(), 0o666)
                    file.write(content)
        except OSError as problem:
            raise ValidationError(f"{path} cannot be written in the sandbox: {problem.strerror}") from problem

    def read(self, path: str) -> bytes:
        *folders, name = self._parts(path) or [""]
        try:
            with folder_at(self.folder, folders) as folder, open(os.open(name, FILE, dir_fd=folder), "rb") as file:
                about = os.fstat(file.fileno())
                if not is_plain(about):
                    raise ValidationError(f"{path} is not a plain file of the sandbox")
                if about.st_size > (most := self.kind.most.read_bytes):
                    raise ValidationError(f"{path} has {about.st_size} bytes; at most {most} can be read")
                return file.read(most)
        except OSError as problem:
            raise ValidationError(f"{path} cannot be read in the sandbox: {problem.strerror}") from problem

    def files(self) -> list[str]:
        with folder_at(self.folder, ()) as folder:
            return sorted(path for path, about in walk(folder, MOST_FILES) if is_plain(about))

    def another(self) -> "Session":
        return Session(self.kind)

    def close(self) -> None:
        if self._outer is not None:
            shutil.rmtree(self._outer, ignore_errors=True)

    def _parts(self, path: str) -> list[str]:
        named = PurePosixPath(path)
        if named.is_absolute():
            if not named.is_relative_to(self.workdir):
                raise ValidationError(f"{path} is not in {self.workdir}, the sandbox's folder")
            named = named.relative_to(self.workdir)
        parts = list(named.parts)
        if parts and not are_parts(parts):
            raise ValidationError(f"{path!r} is not a path within {self.workdir}: no part of it may be ..")
        return parts

    def _environ(self) -> dict[str, str]:
        if self.kind.environ is not None:
            return dict(self.kind.environ)
        if self.kind.level is Level.CONTAINER:
            return {"HOME": "/tmp"}
        own = [str(self.kind.python.parent)] if self.kind.python is not None else []
        environ = {"PATH": ":".join([*own, *SYSTEM_PATH]), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**environ, "HOME": self.workdir} if self.kind.level is Level.NONE else environ

    def _network(self, requested: bool) -> Network:
        if self.kind.level is Level.NONE:
            return Network.SHARED
        if not requested:
            return Network.NONE
        if not self.kind.network:
            raise SandboxUnavailable("this sandbox has no network: the run allows none")
        if self.kind.level is Level.LANDLOCK or (self.kind.level is Level.NAMESPACES and not probe().router):
            hint = "apt-get install bubblewrap slirp4netns"
            raise SandboxUnavailable("a sandbox with a network needs slirp4netns or pasta", hint=hint)
        return Network.OPEN
