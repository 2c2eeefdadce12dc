"""Rules for a sandboxed process, without how they are enforced. `Abilities` names what a level cannot enforce."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.errors import SandboxUnavailable


class Level(enum.IntEnum):
    """Strength of the boundary. A higher level holds all that a lower one does."""

    NONE = 0  # Limits and an end for everything that was started; files and network are the caller's
    LANDLOCK = 1
    """Files and IPC of its own, as another user where the caller is root; processes and network are the machine's."""
    NAMESPACES = 2  # Files, processes and network of its own, by bubblewrap or by the kernel's calls (`own_namespaces`)
    CONTAINER = 3
    """A container of podman or docker: the programs of an image, too. Only for commands that end, by `run`."""

    @property
    def label(self) -> str:
        return {Level.NONE: "level 0", Level.LANDLOCK: "Landlock", Level.NAMESPACES: "level 1"}.get(self, "container")


WORK = "/sandbox"
TMP_FILES = 100_000


class Network(str, enum.Enum):
    NONE = "none"
    OPEN = "open"  # Also outside hosts: not the host's own addresses, nor private or link-local ones
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on a process with all it starts. None is no limit."""

    memory_mb: int | None = None  # Memory of all its processes together; one that outgrows it is ended
    cpus: float | None = None
    """Cores that all its processes together may use. Only where control groups are ours, and in a container."""
    address_space_mb: int | None = None
    """Address space of each process: an allocation beyond it fails, which a parser can report."""
    cpu_s: int | None = None
    wall_s: float | None = None
    processes: int | None = None
    file_mb: int | None = None
    open_files: int | None = None
    output_bytes: int | None = None
    """Bytes of stdout and stderr each; only `run` enforces it, and ends what prints more."""
    disk_mb: int | None = None
    """Size of `Policy.write` and `Policy.work` together; a process that fills them further is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One sandbox. Folders have the same paths inside, or those of `names`."""

    level: Level = Level.NONE
    limits: Limits = field(default_factory=Limits)
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    names: Mapping[Path, Path] = field(default_factory=dict)
    """Names inside of some of `read` and `write`. Only a root of its own has other names: see `inside`."""
    work: Path | None = None  # A folder that it may change and starts in: `/sandbox` in a root of its own, else itself
    devices: tuple[Path, ...] = ()
    network: Network = Network.NONE
    listen: tuple[tuple[str, int], ...] = ()
    tmp_mb: int = 256  # Size of its private `/tmp`, which also holds HOME, and has at most `TMP_FILES` files
    shared_memory_mb: int = 64  # size of its private `/dev/shm`
    unix_sockets: bool = False
    """True where it listens on a Unix socket. Landlock cannot confine those, and refuses them otherwise."""
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    image: str = ""

    def inside(self, path: Path) -> Path:
        if self.level >= Level.NAMESPACES:
            for outside, name in self.names.items():
                if path.is_relative_to(outside):
                    return name / path.relative_to(outside)
        return path


@dataclass(frozen=True, slots=True)
class Abilities:
    """Levels and programs that work on this machine; `reason` tells why no higher level does."""

    level: Level
    reason: str = ""
    bubblewrap: str = ""
    version: str = ""
    router: str = ""  # Path of slirp4netns or pasta; empty: a process that may reach outside shares the host's network
    fix: str = ""

    @property
    def describe(self) -> str:
        if self.level is Level.NONE:
            return f"level 0 (no boundary: {self.reason})" if self.reason else "level 0 (no boundary)"
        if self.level is Level.LANDLOCK:
            return f"Landlock ({self.version}; files only, network and processes are the machine's: {self.reason})"
        name = self.router.rpartition("/")[2]
        network = f"network through {name}" if name else "network shared: neither slirp4netns nor pasta works here"
        return f"level 1 ({self.program}, {network})"

    @property
    def program(self) -> str:
        return f"bubblewrap {self.version}" if self.bubblewrap else "own namespaces, without bubblewrap"

    def require(self, level: Level) -> None:
        if self.level < level:
            raise SandboxUnavailable(f"no sandbox of {level.label} works on this machine: {self.reason}", hint=self.fix)
