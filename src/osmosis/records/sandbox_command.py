"""One command in a sandbox: as it is asked for, and how it ended. Says nothing about who runs it, or where."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field

from osmosis.base.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SessionCommand:
    """One command of a session, as it is asked for; what it gets is at most what the session's kind allows."""

    argv: Sequence[str]
    stdin: bytes = b""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to the session's own variables."""
    cwd: str = "."
    time_s: float = 60.0
    memory_mb: int = 512
    """Of all its processes together."""
    network: bool = False
    """Outside hosts; never this machine or private addresses."""


class EndedBy(str, enum.Enum):
    """Who ended it."""

    ITSELF = "itself"
    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    DISK = "disk"
    CALLER = "caller"
    """Whoever waited for it does no longer."""


@dataclass(frozen=True, slots=True)
class LimitedResult:
    """How a command ended."""

    code: int
    """Its exit code; negative: the signal."""
    stdout: bytes
    stderr: bytes
    ended: EndedBy
    """Which limit ended it, if one did. CPU time shows as a signal: -SIGXCPU or -SIGKILL."""
    seconds: float

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.ended is EndedBy.ITSELF
