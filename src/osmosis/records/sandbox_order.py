"""What a rollout, itself in a sandbox, asks of the sandbox beside it, and what comes of it: over its model endpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Record


class SandboxOrder(Record):
    """Of a rollout to whoever runs it: what its sandbox, which is beside it, is to do. Content is base64."""

    do: Literal["open", "run", "write", "read", "list", "close"]
    sandbox: str = Field(pattern=r"^[0-9a-f]{1,32}$")
    """The rollout's own name for it: made when it is first named, gone with the rollout."""
    path: str = "."
    """Of a file; of `run`, where it starts."""
    argv: list[str] = Field(default_factory=list)
    content: str = ""
    """Of a file; of `run`, what it reads on stdin."""
    environ: dict[str, str] = Field(default_factory=dict)
    time_s: float = Field(default=60.0, gt=0)
    memory_mb: int = Field(default=512, ge=1)
    network: bool = False


class SandboxAnswer(Record):
    """What came of a `SandboxOrder`. A command that failed, or that a limit ended, is an answer like another."""

    workdir: str = ""
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    ended: str = "itself"
    seconds: float = 0.0
    content: str = ""
    files: list[str] = Field(default_factory=list)
    problem: str | None = None
    """Why nothing was done."""
    hint: str | None = None
    unavailable: bool = False
    """No such sandbox works there, whatever is asked of it."""
