import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Literal

from pydantic import Field, field_validator

from osmosis.records.base import Record

LOOPBACK = "127.0.0.1"
SANDBOX_VARIABLE = "OSMOSIS_SANDBOX"
"""The kind of `ctx.sandbox` of a rollout server's rollouts: `auto`, `bubblewrap`, `container:IMAGE`, `none`, or
`gate`."""


class SandboxSettings(Record):
    """A platform's settings for the sandbox of jobs. Sizes are in MB."""

    required: bool = False
    """A job whose machine cannot provide level 1 fails."""
    off: bool = False
    """Jobs run at level 0 even where more would work."""
    allow: list[str] = Field(default_factory=list)
    """`host:port` of endpoints on this machine or in a private network that rollouts may reach, by an IPv4 address or
    as `localhost`.
    """
    memory_mb: int | None = Field(default=None, ge=64)
    """Limit of a rollout server with all it starts; None: unlimited."""
    cpus: float | None = Field(default=None, gt=0)
    """Cores of a rollout server with all it starts; kept where control groups are the platform's own."""
    processes: int | None = Field(default=4096, ge=16)
    tmp_mb: int = Field(default=1024, ge=1)
    artifacts_mb: int = Field(default=4096, ge=1)
    """Limit of all artifacts of a run together, and of each file a rollout writes."""

    output_mb: int = Field(default=64, ge=1)
    """Limit of a rollout server's output: the rest is dropped, and one that prints 16 times as much is ended."""
    server_s: float | None = Field(default=None, gt=0)
    """Lifetime of a rollout server in seconds; None: as long as its run."""
    checkout_mb: int = Field(default=2048, ge=1)
    """Limit of all files of a commit."""

    @field_validator("allow")
    @classmethod
    def _endpoints(cls, value: list[str]) -> list[str]:
        for endpoint in value:
            host, _, port = endpoint.rpartition(":")
            try:
                IPv4Address(LOOPBACK if host == "localhost" else host)
                number = int(port)
            except ValueError:
                number = 0
            if not 0 < number < 65536:
                message = f"{endpoint!r} is not host:port with an IPv4 address or localhost, such as localhost:8000"
                raise ValueError(message)
        return value

    def endpoints(self) -> Iterator[tuple[str, int]]:
        for endpoint in self.allow:
            host, _, port = endpoint.rpartition(":")
            yield (LOOPBACK if host == "localhost" else host), int(port)


LIMITS = ("memory_mb", "cpus", "processes", "tmp_mb", "artifacts_mb", "output_mb", "server_s", "checkout_mb")


def parse_limit(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name not in LIMITS:
        raise ValueError(f"{text!r} is not NAME=VALUE with one of {', '.join(LIMITS)}")
    return name, value


SandboxKind = Literal["auto", "bubblewrap", "container", "none"]


class SandboxChoice(Record):
    """The boundary for code that agents, tools and graders run through `ctx.sandbox`."""

    kind: SandboxKind = "auto"
    """`auto` is a container when an image is named, else bubblewrap; where that does not work it is an error. `none` is
    the machine itself.
    """
    image: str | None = None
    """A container's image, on this machine already."""


@dataclass(frozen=True, slots=True)
class SessionCommand:
    argv: Sequence[str]
    stdin: bytes = b""
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "."
    time_s: float = 60.0
    memory_mb: int = 512
    network: bool = False  # Outside hosts; never this machine or private addresses


class EndedBy(str, enum.Enum):
    ITSELF = "itself"
    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    DISK = "disk"
    CALLER = "caller"


@dataclass(frozen=True, slots=True)
class LimitedResult:
    code: int  # Exit code; negative: the signal
    stdout: bytes
    stderr: bytes
    ended: EndedBy  # The limit that ended it, if any. CPU time shows as a signal: -SIGXCPU or -SIGKILL.
    seconds: float

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.ended is EndedBy.ITSELF


class SandboxOrder(Record):
    """A rollout's request to its sandbox. Content is base64."""

    do: Literal["open", "run", "write", "read", "list", "close"]
    sandbox: str = Field(pattern=r"^[0-9a-f]{1,32}$")
    """The rollout's own name for it: created at first use, gone with the rollout."""
    path: str = "."
    """The file's path; for `run`, the working folder."""
    argv: list[str] = Field(default_factory=list)
    content: str = ""
    """The file's content; for `run`, its stdin."""
    environ: dict[str, str] = Field(default_factory=dict)
    time_s: float = Field(default=60.0, gt=0)
    memory_mb: int = Field(default=512, ge=1)
    network: bool = False


class SandboxAnswer(Record):
    """The response to a `SandboxOrder`. A failed or limited command is a normal response."""

    workdir: str = ""
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    ended: str = "itself"
    seconds: float = 0.0
    content: str = ""
    files: list[str] = Field(default_factory=list)
    problem: str | None = None
    hint: str | None = None
    unavailable: bool = False
    """No such sandbox works there."""
