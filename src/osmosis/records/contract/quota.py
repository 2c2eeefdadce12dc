"""How much a workspace may have at once, and has."""

from __future__ import annotations

from pydantic import Field

from .body import Body


class Quota(Body):
    """Numbers of one workspace; as a limit, None is none."""

    runs: int | None = Field(None, ge=0, le=1_000_000)
    """In flight: with a job that works on it."""
    rollouts: int | None = Field(None, ge=0, le=1_000_000)
    """In flight, of all runs together."""
    cpus: float | None = Field(None, ge=0, le=1_000_000)
    """This and the two below: in use at once, by what the jobs in flight asked for."""
    memory_mb: int | None = Field(None, ge=0, le=2**31 - 1)
    gpus: int | None = Field(None, ge=0, le=1_000_000)
    datasets: int | None = Field(None, ge=0, le=10_000_000)
    bytes: int | None = Field(None, ge=0, le=2**62)
    """Of datasets and base models."""


class QuotaUse(Body):
    """`GET quota`."""

    used: Quota
    limits: Quota
