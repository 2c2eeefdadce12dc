"""The worker: rounds of saying how its jobs are, ending those that nobody waits for, starting what it is given.

Every step is told to the platform, which keeps it, so a worker killed at any point is replaced by the next one on its
machine: jobs that still live are kept, jobs that are gone are started again, here or elsewhere. It runs no user code
itself, and while the platform does not answer it lets its jobs work on.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis._version import __version__
from osmosis.base.locks import FileLock
from osmosis.errors import AuthRequired, Forbidden, NetworkError, OsmosisError
from osmosis.records.contract.worker_bodies import (
    JobOrder,
    JobStarted,
    JobWord,
    WorkerHello,
    WorkerLeaves,
    WorkerOrders,
    WorkerRound,
)
from osmosis.records.run import JOB_PROTOCOL, JobEntry, JobKind
from osmosis.records.sandbox import SandboxSettings
from osmosis.records.worker import Resources

from .desk import Desk
from .executors.executor import Executor, JobStart, JobState
from .executors.local import machine_id

log = logging.getLogger("osmosis.worker")

SHUTDOWN_S = 5.0
NOT_ANSWERED_S = 5.0
"""The longest wait after a platform that did not answer."""
FOLDERS_EVERY_S = 60.0


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker is told. Times are in seconds."""

    name: str
    platform_url: str
    """Where its jobs report to."""
    runs_dir: Path
    """One folder for each run, in it those of its jobs."""
    cache_dir: Path
    state_dir: Path
    """Where it remembers under which id it is known; several workers may share it."""
    max_jobs: int = 1
    max_deployments: int = 0
    """Models served at once, beside the jobs."""
    poll_s: float = 1.0
    """How long it rests between rounds at most; the platform may ask for more."""
    kinds: tuple[JobKind, ...] = ("eval",)
    labels: Mapping[str, str] | None = None
    resources: Resources | None = None
    ca_file: str = ""
    sandbox: SandboxSettings | None = None
    """Of this machine; None: as the platform says."""
    sandbox_words: str = ""
    own_folders: bool = True
    """Whether the folders of runs that are over are removed; the platform's own worker leaves that to it."""


@dataclass(slots=True)
class _Job:
    """A job of this worker."""

    lease_id: str
    job_id: str
    name: str
    kind: JobKind
    handle: dict[str, object]
    wanted: bool = True
    """False once it was killed: what is left is to say so."""


class Worker:
    """One worker. `start` and `stop` run it in a thread; `step` is one round, for who drives it himself."""

    def __init__(
        self, desk: Desk, executor: Executor, plan: WorkerPlan, *, news: threading.Event | None = None
    ) -> None:
        """`news` is set by whoever knows that there is work: the next round need not wait then."""
        self.desk = desk
        self._news = news or threading.Event()
        self.executor = executor
        self.plan = plan
        self.name = plan.name
        self.refused: OsmosisError | None = None
        """Why the platform gives it no more work, for good."""
        self.draining = False
        self._id = ""
        self._jobs: dict[str, _Job] = {}
        """By lease id."""
        self._poll_s = plan.poll_s
        self._places = Places(plan.state_dir)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._folders_at = time.monotonic()

    # --- life ---

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="worker", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let `run` return soon; `stop` does the rest. For a signal handler."""
        self._stop.set()
        self._news.set()

    def stop(self) -> None:
        """End the loop, then the jobs this worker started; their runs go on with the next worker."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(timeout=30)
        self._end_own_jobs()
        self._places.leave()

    def run(self) -> None:
        """Rounds until `stop`, or until there is nothing left to do for a worker that gets no more work."""
        while not self._stop.is_set():
            self._news.clear()
            if not self._stop.is_set() and not self._guarded(self.step):
                self._news.wait(self._poll_s)
            if not self._jobs and (self.refused is not None or (self.draining and self.plan.own_folders)):
                return

    def _guarded(self, action: Callable[[], object]) -> bool:
        try:
            return bool(action())
        except NetworkError as problem:
            log.warning("%s", problem)
            self._stop.wait(NOT_ANSWERED_S)
        except Exception:
            log.exception("a round of the worker failed")
            self._stop.wait(self._poll_s)
        return False

    # --- one round ---

    def step(self) -> bool:
        """One round; whether a job was started, so that another may follow at once."""
        self.executor.reap()
        if self.refused is not None:
            self._look_alone()
            return False
        try:
            if not self._id:
                self._say_hello()
            return self._obey(self.desk.round(self._round()))
        except (AuthRequired, Forbidden) as problem:
            log.error("the platform gives this worker no more work: %s", problem)
            self.refused = problem
            return False

    def _say_hello(self) -> None:
        known = self._places.take()
        plan = self.plan
        welcome = self.desk.hello(
            WorkerHello(
                name=plan.name,
                machine=machine_id(),
                version=__version__,
                protocol=JOB_PROTOCOL,
                kinds=list(plan.kinds),
                max_jobs=plan.max_jobs,
                executor=self.executor.name,
                labels=dict(plan.labels or {}),
                resources=plan.resources or Resources(),
                sandbox=plan.sandbox_words,
                ids=known,
            )
        )
        self._id, self.name = welcome.worker_id, welcome.name
        self._places.remember(welcome.worker_id)
        for kept in welcome.jobs:
            if self.executor.owns(kept.handle):
                self._jobs[kept.lease_id] = _Job(kept.lease_id, kept.job_id, kept.run_name, kept.kind, kept.handle)
        log.info("worker %s: %d jobs of an earlier life are kept", self.name, len(self._jobs))
        if welcome.note:
            log.warning("worker %s: %s", self.name, welcome.note)

    def _round(self) -> WorkerRound:
        words = [self._word(job) for job in self._jobs.values()]
        serving = {job.lease_id for job in self._jobs.values() if job.kind == "serving"}
        alive = {word.lease_id for word in words if word.alive}
        return WorkerRound(
            worker_id=self._id,
            jobs=words,
            slots=max(0, self.plan.max_jobs - len(alive - serving)),
            places=max(0, self.plan.max_deployments - len(alive & serving)),
            kept=self._kept(),
        )

    def _word(self, job: _Job) -> JobWord:
        state = self.executor.poll(job.handle) if job.wanted else JobState(alive=False)
        return JobWord(
            job_id=job.job_id,
            lease_id=job.lease_id,
            alive=state.alive,
            exit_code=state.exit_code,
            words=state.words,
        )

    def _obey(self, orders: WorkerOrders) -> bool:
        self._poll_s = max(self.plan.poll_s, orders.poll_s)
        self.draining = orders.drain
        for lease_id in orders.end:
            if (job := self._jobs.pop(lease_id, None)) is not None:
                self.executor.kill(job.handle)  # also what a job left behind that is gone itself
        for run_id in orders.forget:
            self._forget(run_id)
        if orders.start is None:
            return False
        self._start(orders.start)
        return True

    def _start(self, order: JobOrder) -> None:
        log.info("run %s: claimed", order.run_name)
        plan = self.plan
        entry = JobEntry(
            lease=order.lease,
            work_dir=str(plan.runs_dir / order.folder),
            cache_dir=str(plan.cache_dir),
            ca_file=plan.ca_file,
            sandbox=plan.sandbox,
        )
        said = JobStarted(worker_id=self._id, job_id=order.job_id, lease_id=order.lease_id)
        url = f"{plan.platform_url.rstrip('/')}/api/jobs/{order.run_id}"
        try:
            handle = self.executor.start(JobStart(url, entry))
        except (OsmosisError, OSError) as problem:  # a full disk, say: tried again, and the run says why
            words = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            self.desk.started(said.model_copy(update={"problem": f"its job could not be started: {words}"}))
            return
        self._jobs[order.lease_id] = _Job(order.lease_id, order.job_id, order.run_name, order.kind, handle)
        self.desk.started(said.model_copy(update={"handle": handle}))

    def _look_alone(self) -> None:
        """Nobody tells which jobs are over: those that are gone are."""
        for lease_id, job in list(self._jobs.items()):
            if not self.executor.poll(job.handle).alive:
                self.executor.kill(job.handle)
                del self._jobs[lease_id]

    # --- folders ---

    def _kept(self) -> list[str]:
        """Now and then: the runs of which there are folders here."""
        now = time.monotonic()
        if not self.plan.own_folders or now - self._folders_at < FOLDERS_EVERY_S or not self.plan.runs_dir.is_dir():
            return []
        self._folders_at = now
        return sorted(entry.name for entry in self.plan.runs_dir.iterdir() if entry.is_dir())[:500]

    def _forget(self, run_id: str) -> None:
        folder = self.plan.runs_dir / run_id
        if self.plan.own_folders and folder.parent == self.plan.runs_dir and run_id not in ("", ".", ".."):
            shutil.rmtree(folder, ignore_errors=True)

    # --- the end ---

    def _end_own_jobs(self) -> None:
        own = list(self._jobs.values())
        for job in own:
            self.executor.interrupt(job.handle)
        deadline = time.monotonic() + SHUTDOWN_S
        for job in own:
            while self.executor.poll(job.handle).alive and time.monotonic() < deadline:
                time.sleep(0.05)
            self.executor.kill(job.handle)
            job.wanted = False
        if self._id and self.refused is None:
            try:
                self.desk.leave(WorkerLeaves(worker_id=self._id, jobs=[self._word(job) for job in own]))
            except OsmosisError as problem:
                log.warning("the platform was not told that this worker ends: %s", problem)
        self._jobs.clear()


class Places:
    """The ids under which the workers of a folder are known: each in a file of its own, held by a lock as long as its
    worker lives. A new worker takes the first place that is free, and the jobs of every other one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: FileLock | None = None
        self._file: Path | None = None

    def take(self) -> list[str]:
        """The ids of workers that are gone, the one whose place this is now first."""
        if self._file is not None:
            return [found] if (found := _read(self._file)) else []
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ids = []
        for number in self._numbers():
            file, lock = self._folder / f"worker-{number}", FileLock(self._folder / f"worker-{number}.lock")
            if not lock.take():
                continue  # its worker lives
            if found := _read(file):
                ids.append(found)
            if self._held is None:
                self._held, self._file = lock, file
            else:
                file.unlink(missing_ok=True)
                lock.release()
        return ids

    def _numbers(self) -> list[int]:
        """Those that were ever used here, and the next one."""
        used = sorted(int(file.stem.removeprefix("worker-")) for file in self._folder.glob("worker-*.lock"))
        return [*used, max(used, default=0) + 1]

    def remember(self, worker_id: str) -> None:
        assert self._file is not None
        self._file.write_text(worker_id)

    def leave(self) -> None:
        if self._held is not None:
            self._held.release()
        self._held = self._file = None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()[:100]
    except OSError:
        return ""
