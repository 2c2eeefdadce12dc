"""What a rollout server's process that stands ready is told: which process it is to become."""

from __future__ import annotations

from pydantic import Field

from .base import Record

READY = "ready"
"""The line by which it says that it is."""


class ReadyOrder(Record):
    """A command as it would be started, without the interpreter itself."""

    arguments: list[str] = Field(min_length=1)
    """`main.py`, or `-m MODULE ...`."""
    environ: dict[str, str] = Field(repr=False)
    """All of its variables, secrets among them."""
    cwd: str
