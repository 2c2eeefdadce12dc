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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis._version import __version__
from osmosis.errors import AuthRequired, Forbidden, NetworkError, OsmosisError
from osmosis.records.contract.worker_bodies import (
    QUEUE_S,
    JobOrder,
    JobStarted,
    JobWord,
    WorkerHello,
    WorkerLeaves,
    WorkerOrders,
    WorkerRound,
)
from osmosis.records.gate_address import GateAddress
from osmosis.records.run import JOB_PROTOCOL, JobEntry
from osmosis.records.run_kind import JobKind
from osmosis.records.sandbox import SandboxSettings

from .desk import Desk
from .executors.executor import Executor, JobStart
from .executors.local import machine_id
from .places import WorkerPlaces
from .watch import POLL_S, Seen, Watch

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
    ca_file: str = ""
    sandbox: SandboxSettings | None = None
    """Of this machine; None: as the platform says."""
    gate: GateAddress | None = None
    """How rollout servers elsewhere reach training jobs of this machine."""
    node_dir: str = ""
    """The folder of jobs where the executor runs them, which may name variables of that machine; empty: as here."""
    queue_s: float = QUEUE_S
    """How long a job may wait in a scheduler's queue."""
    look_s: float = POLL_S
    """How often a scheduler is asked how its jobs are."""
    own_folders: bool = True
    """Whether the folders of runs that are over are removed; the platform's own worker leaves that to it."""


@dataclass(slots=True)
class _Job:
    """A job of this worker."""

    lease_id: str
    job_id: str
    name: str
    kind: JobKind
    handle: dict[str, object] | None = None
    """None as long as it is being started."""
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
        self._places = WorkerPlaces(plan.state_dir)
        self._watch = Watch(executor, self._news, every_s=plan.look_s)
        self._to_say: deque[JobStarted] = deque()
        """What became of orders, until the platform knows."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._folders_at = time.monotonic()

    # --- life ---

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="worker", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let `run` return soon; `stop` does the rest."""
        self._stop.set()
        self._news.set()

    def stop(self) -> None:
        """End the loop, then the jobs this worker started; their runs go on with the next worker."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(timeout=30)
        self._end_own_jobs()
        self._watch.close()
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
            self._say_started()
            return self._obey(self.desk.round(self._round()))
        except (AuthRequired, Forbidden) as problem:
            log.error("the platform gives this worker no more jobs: %s", problem)
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
                resources=self.executor.resources(),
                sandbox=self.executor.level(),
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
        seen = self._look()
        words = [_word(job, seen.get(job.lease_id)) for job in self._jobs.values()]
        serving = {job.lease_id for job in self._jobs.values() if job.kind == "serving"}
        alive = {word.lease_id for word in words if word.alive}
        return WorkerRound(
            worker_id=self._id,
            jobs=words,
            slots=max(0, self.plan.max_jobs - len(alive - serving)),
            places=max(0, self.plan.max_deployments - len(alive & serving)),
            queue_s=self.plan.queue_s,
            kept=self._kept(),
        )

    def _look(self) -> dict[str, Seen]:
        """By lease id: how the jobs are that were started."""
        return self._watch.look({job.lease_id: job.handle for job in self._jobs.values() if job.handle is not None})

    def _obey(self, orders: WorkerOrders) -> bool:
        self._poll_s = max(self.plan.poll_s, orders.poll_s)
        self.draining = orders.drain
        for lease_id in orders.end:
            if (job := self._jobs.pop(lease_id, None)) is not None:
                self._kill(job)  # also what a job left behind that is gone itself
        for run_id in orders.forget:
            self._forget(run_id)
        if orders.start is None:
            return False
        self._start([orders.start, *orders.more])
        return True

    def _start(self, orders: Sequence[JobOrder]) -> None:
        """Jobs of one run."""
        for order in orders:
            log.info("run %s: claimed", order.run_name)
            self._jobs[order.lease_id] = _Job(order.lease_id, order.job_id, order.run_name, order.kind)
        jobs = [self._jobs[order.lease_id] for order in orders]
        starts = [self._job_start(order) for order in orders]
        self._watch.do(lambda: self._begin(jobs, starts))
        self._say_started()

    def _job_start(self, order: JobOrder) -> JobStart:
        plan = self.plan
        entry = JobEntry(
            lease=order.lease,
            ticket=order.ticket,
            work_dir=f"{plan.node_dir}/runs/{order.folder}" if plan.node_dir else str(plan.runs_dir / order.folder),
            cache_dir=f"{plan.node_dir}/cache" if plan.node_dir else str(plan.cache_dir),
            ca_file=plan.ca_file,
            sandbox=plan.sandbox,
            gate=plan.gate,
        )
        url = f"{plan.platform_url.rstrip('/')}/api/jobs/{order.run_id}"
        return JobStart(url, entry, order.run_name, order.needs)

    def _begin(self, jobs: Sequence[_Job], starts: Sequence[JobStart]) -> None:
        try:
            handles, words = self.executor.start(starts), ""
        except (OsmosisError, OSError) as problem:  # a full disk, say: tried again, and the run says why
            why = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            handles, words = [], f"its job could not be started: {why}"
        for number, job in enumerate(jobs):
            said = JobStarted(worker_id=self._id, job_id=job.job_id, lease_id=job.lease_id, problem=words)
            if handles:
                job.handle = handles[number]
                said = said.model_copy(update={"handle": job.handle})
            self._to_say.append(said)

    def _say_started(self) -> None:
        """In their order; one that the platform was not told stays for the next round."""
        while self._to_say:
            said = self._to_say[0]
            if said.problem:
                self._jobs.pop(said.lease_id, None)
            self.desk.started(said)
            self._to_say.popleft()

    def _kill(self, job: _Job) -> None:
        """In its turn: after its start, when that is still going on."""
        self._watch.do(lambda: self.executor.kill(job.handle) if job.handle is not None else None)

    def _look_alone(self) -> None:
        """Nobody tells which jobs are over: those that are gone are."""
        for lease_id, seen in self._look().items():
            if not seen.state.alive:
                self._kill(self._jobs.pop(lease_id))

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
        """Those on this machine; what a scheduler has goes on, and the next worker finds it there."""
        own = [] if self.executor.remote else list(self._jobs.values())
        started = [(job, job.handle) for job in own if job.handle is not None]
        for _, handle in started:
            self.executor.interrupt(handle)
        deadline = time.monotonic() + SHUTDOWN_S
        for job, handle in started:
            while self.executor.poll([handle])[0].alive and time.monotonic() < deadline:
                time.sleep(0.05)
            self.executor.kill(handle)
            job.wanted = False
        if self._id and self.refused is None:
            self._leave(own)
        self._jobs.clear()

    def _leave(self, own: Sequence[_Job]) -> None:
        self._watch.close()  # a start that was begun is told before
        try:
            self._say_started()
            self.desk.leave(WorkerLeaves(worker_id=self._id, jobs=[_word(job, None) for job in own]))
        except OsmosisError as problem:
            log.warning("the platform was not told that this worker ends: %s", problem)


def _word(job: _Job, seen: Seen | None) -> JobWord:
    """How a job is; one that was not looked at lives, unless it was killed."""
    if seen is None or not job.wanted:
        return JobWord(job_id=job.job_id, lease_id=job.lease_id, alive=job.wanted)
    state = seen.state
    return JobWord(
        job_id=job.job_id,
        lease_id=job.lease_id,
        alive=state.alive,
        exit_code=state.exit_code,
        words=seen.words,
        place=state.place,
        reason=state.reason,
        cause=state.cause,
    )
