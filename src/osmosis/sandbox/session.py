"""A sandbox with a folder of its own, in which commands run one after another or at once: the tools of one rollout.

Files last as long as the session, processes as long as their command. Files are written and read without following
links, because whoever runs inside could put one anywhere. Which level it is, is chosen once, by `choose`; a level that
does not work here is an error, never a lower one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath

from osmosis.base.light_dataclass import dataclass
from osmosis.base.no_follow import FILE, are_parts, folder_at, is_plain, walk
from osmosis.base.processes import start_token
from osmosis.errors import SandboxUnavailable, ValidationError
from osmosis.records.sandbox import SandboxChoice
from osmosis.records.sandbox_command import LimitedResult, SessionCommand

from .bubblewrap import python_folders
from .container import found_engine, remove_leftovers
from .limited_run import run
from .policy import WORK, Level, Limits, Network, Policy
from .probe import probe

MOST_FILES = 10_000
"""That are listed."""
AT_ONCE = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
"""Commands of all sessions of this process; the time of one that waits does not run yet."""
PREFIX = "osmosis-sandbox-"
"""Of the folders; the process that made them follows."""
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True, slots=True)
class Most:
    """What one command may have, whatever it asks for; and one session on the disk."""

    memory_mb: int = 8192
    time_s: float = 3600.0
    processes: int = 256
    output_bytes: int = 1024 * 1024
    """Of stdout and stderr each."""
    file_mb: int = 1024
    disk_mb: int = 1024
    read_bytes: int = 64 * 1024 * 1024
    """Of a file that is read out, or written from outside."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How sessions are made: chosen once for many of them."""

    level: Level = Level.NONE
    image: str = ""
    python: Path | None = None
    """The Python that `python` is inside, with what is installed beside it; not in a container."""
    network: bool = True
    """Whether commands may ask for a network."""
    most: Most = field(default_factory=Most)
    environ: Mapping[str, str] | None = None
    """The variables of every command. None: a few of the sandbox's own."""
    parent: Path | None = None
    """Where the folders of sessions are made. None: the folder for temporary files."""


def choose(
    wanted: SandboxChoice,
    *,
    python: Path | None = None,
    network: bool = True,
    most: Most | None = None,
    parent: Path | None = None,
) -> Kind:
    """What `wanted` comes down to on this machine. Raises `SandboxUnavailable`, with what to do."""
    level = _level(wanted)
    if level is Level.CONTAINER:
        found_engine().require(wanted.image or "")
        remove_leftovers()
    _remove_folders(parent)
    interpreter = None if level is Level.CONTAINER else python or Path(sys.executable)
    return Kind(level, wanted.image or "", interpreter, network, most or Most(), parent=parent)


def _level(wanted: SandboxChoice) -> Level:
    if wanted.kind == "none":
        return Level.NONE
    if wanted.kind == "container" or (wanted.kind == "auto" and wanted.image):
        if not wanted.image:
            raise SandboxUnavailable(
                "a sandbox in a container needs an image", hint="--sandbox-image python:3.12-slim (sandbox_image)"
            )
        return Level.CONTAINER
    here = probe()
    if here.level < Level.NAMESPACES:
        raise SandboxUnavailable(
            f"no sandbox works on this machine: {here.reason}",
            hint=f"{here.fix}; or name the image of a container (--sandbox-image IMAGE), "
            "or run code with your own rights (--sandbox none)",
        )
    return Level.NAMESPACES


class Session:
    """One sandbox, open. Its methods wait; `close` removes its files."""

    def __init__(self, kind: Kind, *, folder: Path | None = None) -> None:
        """`folder` is one that is there already and stays: for level 0 inside somebody else's boundary."""
        self.kind = kind
        self._outer: Path | None = None
        if folder is None:
            self._outer = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=kind.parent))
            folder = self._outer / "work"
            folder.mkdir()
            folder.chmod(0o777)  # a container's user is another one; nobody else comes as far as this
        self.folder = folder
        """Outside."""

    @property
    def workdir(self) -> str:
        """Its folder as it is called inside: where commands start."""
        return str(self.folder) if self.kind.level is Level.NONE else WORK

    def run(self, command: SessionCommand, stop: threading.Event | None = None) -> LimitedResult:
        """One command to its end, whichever that is. Raises `SandboxUnavailable` when the level cannot do it."""
        if not command.argv or any("\0" in part for part in command.argv):
            raise ValidationError("a command is a list of strings without NUL, the first of them a program")
        most = self.kind.most
        policy = Policy(
            level=self.kind.level,
            work=self.folder,
            cwd=Path(self.workdir, *self._parts(command.cwd)),
            image=self.kind.image,
            read=self._read(),
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
        """A file, in folders that are made as needed. Raises `ValidationError` for a path that leads elsewhere."""
        if len(content) > self.kind.most.read_bytes:
            raise ValidationError(
                f"{path} has {len(content)} bytes; at most {self.kind.most.read_bytes} can be written"
            )
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
        """The content of a file. Raises `ValidationError` when it is none: a link, a device, or not there."""
        *folders, name = self._parts(path) or [""]
        try:
            with folder_at(self.folder, folders) as folder, open(os.open(name, FILE, dir_fd=folder), "rb") as file:
                about = os.fstat(file.fileno())
                if not is_plain(about):
                    raise ValidationError(f"{path} is not a plain file of the sandbox")
                if about.st_size > self.kind.most.read_bytes:
                    raise ValidationError(
                        f"{path} has {about.st_size} bytes; at most {self.kind.most.read_bytes} can be read"
                    )
                return file.read(self.kind.most.read_bytes)
        except OSError as problem:
            raise ValidationError(f"{path} cannot be read in the sandbox: {problem.strerror}") from problem

    def files(self) -> list[str]:
        """The paths of its files, from its folder on."""
        with folder_at(self.folder, ()) as folder:
            return sorted(path for path, about in walk(folder, MOST_FILES) if is_plain(about))

    def another(self) -> Session:
        """A new, empty one of the same kind."""
        return Session(self.kind)

    def close(self) -> None:
        """Removes its files. May be called twice."""
        if self._outer is not None:
            shutil.rmtree(self._outer, ignore_errors=True)

    def _parts(self, path: str) -> list[str]:
        """The parts of a path from the session's folder on."""
        named = PurePosixPath(path)
        if named.is_absolute():
            if not named.is_relative_to(self.workdir):
                raise ValidationError(f"{path} is not in {self.workdir}, the sandbox's folder")
            named = named.relative_to(self.workdir)
        parts = list(named.parts)
        if parts and not are_parts(parts):
            raise ValidationError(f"{path!r} is not a path within {self.workdir}: no part of it may be ..")
        return parts

    def _read(self) -> tuple[Path, ...]:
        inside = self.kind.level is Level.NAMESPACES and self.kind.python is not None
        return python_folders(self.kind.python) if inside and self.kind.python is not None else ()

    def _environ(self) -> dict[str, str]:
        if self.kind.environ is not None:
            return dict(self.kind.environ)
        if self.kind.level is Level.CONTAINER:
            return {"HOME": "/tmp"}
        own = [str(self.kind.python.parent)] if self.kind.python is not None else []
        environ = {"PATH": ":".join([*own, *SYSTEM_PATH]), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**environ, "HOME": self.workdir} if self.kind.level is Level.NONE else environ

    def _network(self, asked: bool) -> Network:
        if self.kind.level is Level.NONE:
            return Network.SHARED
        if not asked:
            return Network.NONE
        if not self.kind.network:
            raise SandboxUnavailable("this sandbox has no network: the run allows none")
        if self.kind.level is Level.NAMESPACES and not probe().router:
            raise SandboxUnavailable(
                "a sandbox with a network needs slirp4netns or pasta", hint="apt-get install slirp4netns"
            )
        return Network.OPEN


def _remove_folders(parent: Path | None) -> None:
    """What processes that were killed have left: their folders say whose they are."""
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        maker = folder.name.removeprefix(PREFIX).partition("-")[0]
        if maker.isdigit() and not start_token(int(maker)) and folder.stat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
