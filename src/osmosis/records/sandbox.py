"""What a platform's operator says about the sandbox of jobs: a record that travels with each job."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

from pydantic import Field, field_validator

from .base import Record

LOOPBACK = "127.0.0.1"


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
    processes: int | None = Field(default=4096, ge=16)
    tmp_mb: int = Field(default=1024, ge=1)
    artifacts_mb: int = Field(default=4096, ge=1)
    """Of all artifacts of a run together, and of each file a rollout writes."""

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
