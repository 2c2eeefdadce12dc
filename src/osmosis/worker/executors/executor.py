"""What every executor offers the worker: start jobs, say how they are, end them.

A handle is plain data, kept by the platform, so that another worker (or this one after a restart) finds the job again:
it says which executor has the job, and what that calls it. An executor never talks to the platform, and no secret
passes through one: a job on this machine reads its lease from a pipe, every other has a ticket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from osmosis.records.contract.worker_bodies import JobEndCause
from osmosis.records.run import JobEntry
from osmosis.records.worker import ResourceNeeds, Resources

Handle = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobStart:
    """A job that is to be started."""

    url: str
    """`https://platform/api/jobs/<run>`: all that a job has to be told in the open."""
    entry: JobEntry = field(repr=False)
    """For its standard input."""
    name: str = "job"
    """For lists that people read."""
    needs: ResourceNeeds = field(default_factory=ResourceNeeds)


@dataclass(frozen=True, slots=True)
class JobState:
    """What is known of a job."""

    alive: bool
    """Also while it waits to begin."""
    exit_code: int | None = None
    """None while it lives, or when nobody knows."""
    place: str = ""
    """Where it waits to begin: `queued in slurm as job 42 (Resources)`; empty once it has."""
    reason: str = ""
    """Why it is gone, where that is known."""
    cause: JobEndCause = "died"


class Executor(Protocol):
    name: str
    remote: bool
    """Its answers come from somewhere else, and may take long: the worker asks beside its rounds. Its jobs live on
    without the worker."""

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        """Start these jobs, which are of one run, and return their handles; all of them or none.
        OsmosisError or OSError when they cannot be started."""

    def owns(self, handle: Handle) -> bool:
        """Whether this executor can see the job behind a handle."""

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        """How these jobs are, in their order. OsmosisError when that cannot be known now."""

    def words(self, handle: Handle) -> str:
        """The end of what a job printed, as far as it can be read from here."""

    def reap(self) -> None:
        """Take note of jobs that have ended, so that the system can forget them; nothing is said about them here."""

    def interrupt(self, handle: Handle) -> None:
        """Ask it to shut down."""

    def kill(self, handle: Handle) -> None:
        """End it and everything it started, or take it out of its queue."""

    def resources(self) -> Resources:
        """What jobs can have here, all together."""

    def level(self) -> str:
        """What keeps rollouts from the machines they run on, in words."""
