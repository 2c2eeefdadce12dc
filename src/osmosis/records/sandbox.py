"""What a platform's operator says about the sandbox of jobs: a record that travels with each job."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Literal

from pydantic import Field, field_validator

from .base import Record

LOOPBACK = "127.0.0.1"
SANDBOX_VARIABLE = "OSMOSIS_SANDBOX"
"""Where `ctx.sandbox` of a rollout server's rollouts is: `auto`, `bubblewrap`, `container:IMAGE`, `none`, or `gate`."""


class SandboxSettings(Record):
    """Of one platform. Sizes are in MB."""

    required: bool = False
    """A job whose machine cannot do level 1 fails."""
    off: bool = False
    """Jobs run at level 0 although more would work."""
    allow: list[str] = Field(default_factory=list)
    """`host:port` of endpoints on this machine or in a private network that rollouts may reach, by an IPv4 address or
    as `localhost`."""
    memory_mb: int | None = Field(default=None, ge=64)
    """Of a rollout server with all it starts; None: as much as there is."""
    cpus: float | None = Field(default=None, gt=0)
    """Cores of a rollout server with all it starts; kept where control groups are the platform's own."""
    processes: int | None = Field(default=4096, ge=16)
    tmp_mb: int = Field(default=1024, ge=1)
    artifacts_mb: int = Field(default=4096, ge=1)
    """Of all artifacts of a run together, and of each file a rollout writes."""

    output_mb: int = Field(default=64, ge=1)
    """Of what a rollout server prints: the rest is dropped, and one that prints 16 times as much is ended."""
    server_s: float | None = Field(default=None, gt=0)
    """Seconds that one rollout server may live; None: as long as its run."""
    checkout_mb: int = Field(default=2048, ge=1)
    """Of all files of a commit."""

    @field_validator("allow")
    @classmethod
    def _endpoints(cls, value: list[str]) -> list[str]:
        for one in value:
            host, _, port = one.rpartition(":")
            try:
                IPv4Address(LOOPBACK if host == "localhost" else host)
                number = int(port)
            except ValueError:
                number = 0
            if not 0 < number < 65536:
                raise ValueError(f"{one!r} is not host:port with an IPv4 address or localhost, such as localhost:8000")
        return value

    def endpoints(self) -> Iterator[tuple[str, int]]:
        """Address and port of each allowed endpoint."""
        for one in self.allow:
            host, _, port = one.rpartition(":")
            yield (LOOPBACK if host == "localhost" else host), int(port)


LIMITS = ("memory_mb", "cpus", "processes", "tmp_mb", "artifacts_mb", "output_mb", "server_s", "checkout_mb")
"""The fields of `SandboxSettings` that say how much a rollout server may use."""


def limit_of(text: str) -> tuple[str, str]:
    """Name and value of one limit as an operator writes it, `memory_mb=4096`. ValueError for what is none."""
    name, equals, value = text.partition("=")
    if not equals or name not in LIMITS:
        raise ValueError(f"{text!r} is not NAME=VALUE with one of {', '.join(LIMITS)}")
    return name, value


SandboxKind = Literal["auto", "bubblewrap", "container", "none"]


class SandboxChoice(Record):
    """In which boundary the code of agents, tools and graders runs when they ask for one (`ctx.sandbox`)."""

    kind: SandboxKind = "auto"
    """`auto` is a container when an image is named, else bubblewrap; where that does not work it is an error. `none`
    is the machine itself, and only when it is asked for."""
    image: str | None = None
    """Of a container, on this machine already."""
