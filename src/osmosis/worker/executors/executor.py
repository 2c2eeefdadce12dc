from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from osmosis.errors import OsmosisError
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
    words: str = ""
    """The end of its output; empty while it lives."""


class Executor(Protocol):
    name: str
    remote: bool
    """True when calls may take long; its jobs live on without the worker."""

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        """Start these jobs of one run, all or none, and return their handles. Raise OsmosisError, OSError."""

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

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        raise NotImplementedError

    def end(self, number: str) -> None:
        raise NotImplementedError

    def interrupt(self, handle: Handle) -> None:
        self.kill(handle)

    def kill(self, handle: Handle) -> None:
        if self.poll([handle])[0].alive:
            self.end(str(handle["id"]))

    def start_each(self, jobs: Sequence[JobStart], submit: Callable[[JobStart], str]) -> list[str]:
        """Submit jobs one by one, all or none, and return their ids."""
        ids: list[str] = []
        try:
            for job in jobs:
                ids.append(submit(job))
        except OsmosisError:
            for number in ids:
                self.end(number)
            raise
        return ids
