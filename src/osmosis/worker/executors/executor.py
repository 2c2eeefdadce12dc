import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    alive: bool  # Also true while it waits to begin
    exit_code: int | None = None  # None while it lives, or when nobody knows
    place: str = ""  # Where it waits to begin: `queued in slurm as job 42 (Resources)`; empty once it has begun
    reason: str = ""
    cause: JobEndCause = "died"
    words: str = ""  # The end of its output; empty while it lives


class Executor(Protocol):
    name: str
    remote: bool  # True when calls may take long; its jobs live on without the worker

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


log = logging.getLogger("osmosis.worker")

POLL_S = 5.0
CLOSE_S = 60.0


ALIVE = JobState(alive=True)


class JobPoller:
    """Use `run` and `poll` from one thread, that of the worker's rounds."""

    def __init__(self, executor: Executor, news: threading.Event, *, every_s: float = POLL_S) -> None:
        self._executor = executor
        self._news = news
        self._every_s = every_s
        self._wanted: dict[str, Handle] = {}
        self._seen: dict[str, JobState] = {}
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, action: Callable[[], object]) -> None:
        if not self._executor.remote:
            action()
            return
        self._begin()
        self._todo.put(action)

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, JobState]:
        if not self._executor.remote:
            return self._ask(handles)
        self._wanted = dict(handles)
        if handles:
            self._begin()
        return {key: self._seen.get(key, ALIVE) for key in handles}

    def close(self) -> None:
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join(timeout=CLOSE_S)
            self._thread = None

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        next_look = time.monotonic()
        while True:
            try:
                action = self._todo.get(timeout=max(0.01, next_look - time.monotonic()))
            except queue.Empty:
                self._guarded(self._look)
                next_look = time.monotonic() + self._every_s
                continue
            if action is None:
                return
            self._guarded(action)
            self._news.set()

    def _look(self) -> None:
        states = self._ask(self._wanted)
        changed = any(self._seen.get(key, ALIVE) != state for key, state in states.items())
        self._seen = states
        if changed:
            self._news.set()

    def _ask(self, handles: Mapping[str, Handle]) -> dict[str, JobState]:
        states = dict(zip(handles, self._executor.poll(list(handles.values())), strict=True)) if handles else {}
        ended = {key: state for key, state in states.items() if not state.alive}
        words = {key: self._executor.read_output(handles[key]) for key in ended}
        return states | {key: replace(state, words=words[key]) for key, state in ended.items()}

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OsmosisError as problem:
            log.warning("%s", problem)
        except Exception:
            log.exception("%s: what was to be done there failed", self._executor.name)
