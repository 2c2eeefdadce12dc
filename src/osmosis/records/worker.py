"""What a machine has and what a run needs of it: by these two a worker is given work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from .base import Record
from .rules import Table

_SIZE = re.compile(r"^(\d+(?:\.\d+)?) ?(MB|GB|TB)$")
_MB = {"MB": 1, "GB": 1024, "TB": 1024 * 1024}


def checked_size(text: str) -> str:
    """As it is. `ValueError` for what is no size."""
    if not _SIZE.match(text):
        raise ValueError('must be a size such as "512MB" or "16GB"')
    return text


Size = Annotated[str, AfterValidator(checked_size)]


def megabytes(size: str | None) -> int:
    """A `Size` in MB; 0 for None."""
    found = _SIZE.match(size or "")
    return int(float(found[1]) * _MB[found[2]]) if found else 0


class Resources(Record):
    """Of a worker: what it has. Sizes are in MB."""

    cpus: float = Field(default=0, ge=0)
    memory_mb: int = Field(default=0, ge=0)
    gpus: int = Field(default=0, ge=0)
    disk_mb: int = Field(default=0, ge=0)

    def without(self, needs: ResourceNeeds) -> Resources:
        """What is left beside a job with these needs."""
        return Resources(
            cpus=max(0.0, self.cpus - (needs.cpus or 0)),
            memory_mb=max(0, self.memory_mb - megabytes(needs.memory)),
            gpus=max(0, self.gpus - (needs.gpus or 0)),
            disk_mb=max(0, self.disk_mb - megabytes(needs.disk)),
        )


class ResourceNeeds(Table):
    """`[advanced.resources]`: what a job of the run needs for itself; a key that is not set asks for nothing."""

    cpus: float | None = Field(default=None, gt=0, examples=[4])
    """Processors."""
    memory: Size | None = Field(default=None, examples=["16GB"])
    """Memory, in MB, GB or TB."""
    gpus: int | None = Field(default=None, ge=1, examples=[1])
    """GPUs."""
    disk: Size | None = Field(default=None, examples=["20GB"])
    """Free space for checkouts, environments and artifacts."""
    wall_s: float | None = Field(default=None, gt=0, examples=[3600])
    """Seconds after which an evaluation ends, with what it has."""
    labels: dict[str, str] = Field(default_factory=dict, examples=[{"gpu": "a100"}])
    """Labels that the worker must have."""

    def lacking(self, has: Resources, labels: Mapping[str, str]) -> list[str]:
        """What a worker with this lacks, in words; nothing when it can take the job."""
        asked = (
            ("cpus", self.cpus or 0, has.cpus, self.cpus),
            ("memory", megabytes(self.memory), has.memory_mb, self.memory),
            ("gpus", self.gpus or 0, has.gpus, self.gpus),
            ("disk", megabytes(self.disk), has.disk_mb, self.disk),
        )
        found = [f"{name} >= {said}" for name, wanted, there, said in asked if wanted > there]
        return found + [f"label {key}={value}" for key, value in self.labels.items() if labels.get(key) != value]
