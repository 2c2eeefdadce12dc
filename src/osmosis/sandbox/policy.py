"""What a sandboxed process is allowed: a record, without a word about how it is enforced.

What a level cannot enforce is not silently dropped: `Abilities` says it, and who needs it asks there first.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import SandboxUnavailable


class Level(enum.IntEnum):
    """How strong the boundary is. A higher one holds all that a lower one does."""

    NONE = 0
    """Limits and an end for everything that was started; files and network are those of the caller."""
    NAMESPACES = 1
    """Bubblewrap: files, processes and network of its own."""
    CONTAINER = 2
    """A container of podman or docker: the programs of an image, too. Only for commands that end, by `run`."""


WORK = "/sandbox"
"""Where `Policy.work` appears inside."""


class Network(str, enum.Enum):
    """What a process reaches."""

    NONE = "none"
    """Nothing but itself, and what the caller listens on inside (`Policy.listen`)."""
    OPEN = "open"
    """Also outside hosts: not the host's own addresses, nor private or link-local ones."""
    SHARED = "shared"
    """The network of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a process, with all it starts, may use up. None: as much as there is."""

    memory_mb: int | None = None
    """Of all its processes together; one that outgrows it is ended."""
    cpus: float | None = None
    """Cores that all its processes together may use. Only where control groups are ours, and in a container."""
    address_space_mb: int | None = None
    """Of each process: an allocation beyond it fails, which a parser can report."""
    cpu_s: int | None = None
    """Of each process, in seconds; SIGXCPU."""
    wall_s: float | None = None
    """From the start to the end."""
    processes: int | None = None
    file_mb: int | None = None
    """Of each file it writes."""
    open_files: int | None = None
    output_bytes: int | None = None
    """Of stdout and stderr each; only `run` keeps it, and ends what prints more."""
    disk_mb: int | None = None
    """Of all that lies in `Policy.write` and `Policy.work` together; what fills them further is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One sandbox. Folders appear inside under the names they have outside, or those of `names`."""

    level: Level = Level.NONE
    limits: Limits = field(default_factory=Limits)
    read: tuple[Path, ...] = ()
    """Files and folders it may read. The system's programs and libraries are always there."""
    write: tuple[Path, ...] = ()
    """Folders it may change; each exists."""
    names: Mapping[Path, Path] = field(default_factory=dict)
    """What some of `read` and `write` are called inside. Level 0 has no other names: see `inside`."""
    work: Path | None = None
    """A folder that it may change and starts in: `/sandbox` inside, itself at level 0."""
    devices: tuple[Path, ...] = ()
    """Files and folders of `/dev` that it may use, beside the few that are always there."""
    network: Network = Network.NONE
    listen: tuple[tuple[str, int], ...] = ()
    """Addresses and ports inside at which the caller answers: `Box.listeners` holds the sockets."""
    tmp_mb: int = 256
    """The size of `/tmp`, which is its own and goes with it. HOME is there, too."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """All of its environment variables."""
    cwd: Path | None = None
    """As it is called inside. None: `work`, or `/tmp` without one."""
    image: str = ""
    """At level 2: of which image, which is on this machine already."""

    def inside(self, path: Path) -> Path:
        """What a file or folder of this machine is called inside."""
        if self.level is not Level.NONE:
            for outside, name in self.names.items():
                if path.is_relative_to(outside):
                    return name / path.relative_to(outside)
        return path


@dataclass(frozen=True, slots=True)
class Abilities:
    """What works here. `reason` says why nothing higher than `level` does; empty when that is not known to matter."""

    level: Level
    reason: str = ""
    bubblewrap: str = ""
    """Its path."""
    version: str = ""
    router: str = ""
    """The path of slirp4netns or pasta; empty: a process that may reach outside shares the host's network."""
    nested_off: bool = False
    """Namespaces inside the sandbox can be forbidden (bubblewrap 0.8)."""
    fix: str = ""

    @property
    def describe(self) -> str:
        """One line for a person: `level 1 (bubblewrap 0.8.0, network through slirp4netns)`."""
        if self.level is Level.NONE:
            return f"level 0 (no boundary: {self.reason})" if self.reason else "level 0 (no boundary)"
        name = self.router.rpartition("/")[2]
        network = f"network through {name}" if name else "network shared: neither slirp4netns nor pasta works here"
        return f"level 1 (bubblewrap {self.version}, {network})"

    def require(self, level: Level) -> None:
        """Raises `SandboxUnavailable` when `level` does not work here."""
        if self.level < level:
            raise SandboxUnavailable(
                f"no sandbox of level {level.value} works on this machine: {self.reason}", hint=self.fix
            )
