from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from osmosis.records.api.workers import JobEndCause
from osmosis.records.base import Record
from osmosis.records.config.worker import ResourceNeeds, Resources
from osmosis.records.run.job import JobEntry

Handle = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobStart:
    url: str
    entry: JobEntry = field(repr=False)
    name: str = "job"
    needs: ResourceNeeds = field(default_factory=ResourceNeeds)


@dataclass(frozen=True, slots=True)
class JobState:
    alive: bool
    """Also true while it waits to begin."""
    exit_code: int | None = None
    """None while it lives, or when nobody knows."""
    place: str = ""
    """Where it waits to begin: `queued in slurm as job 42 (Resources)`; empty once it has begun."""
    reason: str = ""
    cause: JobEndCause = "died"


class Executor(Protocol):
    name: str
    remote: bool
    """True when calls may take long; its jobs live on without the worker."""

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        """Start these jobs of one run, all or none, and return their handles. Raise `OsmosisError` or `OSError` when
        they cannot be started."""

    def owns(self, handle: Handle) -> bool: ...

    def poll(self, handles: Sequence[Handle]) -> list[JobState]: ...

    def read_output(self, handle: Handle) -> str: ...

    def reap(self) -> None:
        """Forget jobs that have ended, so that the system can forget them too."""

    def interrupt(self, handle: Handle) -> None: ...

    def kill(self, handle: Handle) -> None: ...

    def resources(self) -> Resources: ...

    def level(self) -> str:
        """Return in words how rollouts are kept from the machines that they run on."""


class SchedulerHandle(Record):
    """Lets any worker with the same scheduler re-attach to the job; `id` is the scheduler's."""

    executor: str
    id: str


class SchedulerExecutor:
    name: str
    remote = True

    def owns(self, handle: Handle) -> bool:
        return handle.get("executor") == self.name

    def reap(self) -> None:
        """Do nothing: the scheduler reaps its jobs."""
