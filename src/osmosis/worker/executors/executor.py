"""What every executor offers the worker: start a job, ask whether it lives, end it.

A handle is plain data, kept by the platform, so that another worker (or this one after a restart) finds the job again.
An executor never talks to the platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from osmosis.records.run import JobEntry


@dataclass(frozen=True, slots=True)
class JobStart:
    """A job that is to be started."""

    url: str
    """`https://platform/api/jobs/<run>`: all that a job has to be told in the open."""
    entry: JobEntry
    """For its standard input alone."""


@dataclass(frozen=True, slots=True)
class JobState:
    """What is known of a job."""

    alive: bool
    exit_code: int | None = None
    """None while it lives, or when another process was its parent."""
    words: str = ""
    """The end of what it printed, once it is gone."""


class Executor(Protocol):
    name: str

    def start(self, job: JobStart) -> dict[str, object]:
        """Start the job and return its handle; the entry reaches its standard input and nothing else.
        OsmosisError when it cannot be started."""

    def owns(self, handle: Mapping[str, object]) -> bool:
        """Whether this executor can see the job behind a handle."""

    def poll(self, handle: Mapping[str, object]) -> JobState:
        """Whether the job lives."""

    def reap(self) -> None:
        """Take note of jobs that have ended, so that the system can forget them; nothing is said about them here."""

    def interrupt(self, handle: Mapping[str, object]) -> None:
        """Ask it to shut down."""

    def kill(self, handle: Mapping[str, object]) -> None:
        """Kill it and everything it started."""
