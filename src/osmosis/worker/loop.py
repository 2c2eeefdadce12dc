"""The worker: in rounds, report its jobs, end those that nobody waits for, start new ones."""

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import httpx

from osmosis._version import __version__
from osmosis.base.locks import FileLock
from osmosis.base.net import is_http, is_loopback
from osmosis.errors import AuthRequired, Forbidden, NetworkError, OsmosisError, PlatformError, UsageError, from_wire
from osmosis.records.api import workers as worker_api
from osmosis.records.base import Record
from osmosis.records.config.worker import QUEUE_S, GateAddress
from osmosis.records.run.job import JOB_PROTOCOL, JobEntry
from osmosis.records.run.status import JobKind
from osmosis.records.sandbox import SandboxSettings
from osmosis.worker.executors.executor import POLL_S, Executor, JobPoller, JobStart, JobState
from osmosis.worker.executors.local import machine_id

TIMEOUT_S = 30.0
R = TypeVar("R", bound=Record)


class PlatformApi(Protocol):
    def hello(self, hello: worker_api.WorkerHello) -> worker_api.WorkerWelcome: ...

    def round(self, report: worker_api.WorkerRound) -> worker_api.WorkerOrders: ...

    def started(self, report: worker_api.JobStarted) -> None: ...

    def leave(self, report: worker_api.WorkerLeaves) -> None: ...


class HttpPlatformApi:
    def __init__(self, url: str, token: str, *, ca_file: Path | None = None) -> None:
        if not is_http(url):
            raise UsageError(f"{url!r} is not the URL of a platform", hint="--platform-url https://HOST")
        if not url.startswith("https://") and not is_loopback(url):
            message = f"{url} is neither https nor on this machine: a worker's token does not go there"
            hint = "put TLS before the platform and give its https:// address, or use an ssh tunnel"
            raise UsageError(message, hint=hint)
        if ca_file is not None and not ca_file.is_file():
            raise UsageError(f"--ca-file: {ca_file} does not exist")
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": f"osmosis-worker/{__version__}"},
            timeout=TIMEOUT_S,
            trust_env=not is_loopback(url),
            verify=str(ca_file) if ca_file is not None else True,
        )

    def __enter__(self) -> "HttpPlatformApi":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def hello(self, hello: worker_api.WorkerHello) -> worker_api.WorkerWelcome:
        return self._say("hello", hello, worker_api.WorkerWelcome)

    def round(self, report: worker_api.WorkerRound) -> worker_api.WorkerOrders:
        return self._say("claim", report, worker_api.WorkerOrders)

    def started(self, report: worker_api.JobStarted) -> None:
        self._post("started", report)

    def leave(self, report: worker_api.WorkerLeaves) -> None:
        self._post("leave", report)

    def _say(self, what: str, record: Record, answer: type[R]) -> R:
        body = self._post(what, record)
        try:
            return answer.model_validate_json(body)
        except ValueError as problem:
            message = f"{self.url} answered a worker with something else than it expects"
            raise PlatformError(message, hint="use the same version of osmosis on both sides") from problem

    def _post(self, what: str, record: Record) -> bytes:
        try:
            headers = {"Content-Type": "application/json"}
            answer = self._http.post(f"/api/workers/{what}", content=record.model_dump_json().encode(), headers=headers)
        except httpx.HTTPError as problem:
            raise NetworkError(f"the platform at {self.url} cannot be reached: {problem}") from problem
        if answer.status_code >= 500 or answer.status_code == 429:
            raise NetworkError(f"the platform at {self.url} answered HTTP {answer.status_code}")
        if answer.status_code >= 400:
            try:
                body = answer.json()
            except ValueError:
                body = None
            text = {"message": f"the platform answered HTTP {answer.status_code}"}
            raise from_wire(answer.status_code, body if isinstance(body, dict) else text)
        return answer.content


log = logging.getLogger("osmosis.worker")

SHUTDOWN_S = 5.0
NOT_ANSWERED_S = 5.0
FOLDERS_EVERY_S = 60.0


@dataclass(frozen=True)
class WorkerPlan:
    name: str
    platform_url: str
    runs_dir: Path
    cache_dir: Path
    state_dir: Path
    max_jobs: int = 1
    max_deployments: int = 0
    poll_s: float = 1.0
    kinds: tuple[JobKind, ...] = ("eval",)
    labels: Mapping[str, str] | None = None
    ca_file: str = ""
    sandbox: SandboxSettings | None = None
    gate: GateAddress | None = None
    node_dir: str = ""
    """The folder of jobs where the executor runs them, which may name variables of that machine; empty: as here."""
    queue_s: float = QUEUE_S
    look_s: float = POLL_S
    own_folders: bool = True
    """True to remove the folders of runs that are over; the platform's own worker leaves that to it."""


@dataclass(slots=True)
class _Job:
    lease_id: str
    job_id: str
    name: str
    kind: JobKind
    handle: dict[str, object] | None = None
    wanted: bool = True


class Worker:
    def __init__(
        self, desk: PlatformApi, executor: Executor, plan: WorkerPlan, *, news: threading.Event | None = None
    ) -> None:
        """`news` is set when there is work, so that the next round need not wait."""
        self.desk = desk
        self._news = news or threading.Event()
        self.executor = executor
        self.plan = plan
        self.name = plan.name
        self.refused: OsmosisError | None = None
        self.draining = False
        self._id = ""
        self._jobs: dict[str, _Job] = {}
        self._poll_s = plan.poll_s
        self._identity = WorkerIdentity(plan.state_dir)
        self._poller = JobPoller(executor, self._news, every_s=plan.look_s)
        self._pending_reports: deque[worker_api.JobStarted] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._folders_at = time.monotonic()

    # --- life ---

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="worker", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()
        self._news.set()

    def stop(self) -> None:
        """End the loop, then the jobs this worker started; their runs go on with the next worker."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(timeout=30)
        self._end_own_jobs()
        self._poller.close()
        self._identity.leave()

    def run(self) -> None:
        while not self._stop.is_set():
            self._news.clear()
            if not self._stop.is_set() and not self._guarded(self.step):
                self._news.wait(self._poll_s)
            if not self._jobs and (self.refused is not None or (self.draining and self.plan.own_folders)):
                log.info("worker %s ends: it gets no more jobs, and has none", self.name)
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
        self.executor.reap()
        if self.refused is not None:
            for lease_id, state in self._look().items():
                if not state.alive:
                    self._kill(self._jobs.pop(lease_id))
            return False
        try:
            if not self._id:
                self._say_hello()
            self._report_started()
            orders = self.desk.round(self._round())
            self._poll_s = max(self.plan.poll_s, orders.poll_s)
            self.draining = orders.drain
            for lease_id in orders.end:
                if (job := self._jobs.pop(lease_id, None)) is not None:
                    self._kill(job)  # also what a job left behind that is gone itself
            for run_id in orders.forget:
                folder = self.plan.runs_dir / run_id
                if self.plan.own_folders and folder.parent == self.plan.runs_dir and run_id not in ("", ".", ".."):
                    shutil.rmtree(folder, ignore_errors=True)
            if orders.start is None:
                return False
            self._start([orders.start, *orders.more])
            return True
        except (AuthRequired, Forbidden) as problem:
            log.error("the platform gives this worker no more jobs: %s", problem)
            self.refused = problem
            return False

    def _say_hello(self) -> None:
        ids = self._identity.take()
        plan = self.plan
        welcome = self.desk.hello(
            worker_api.WorkerHello(
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
                ids=ids,
            )
        )
        self._id, self.name = welcome.worker_id, welcome.name
        self._identity.remember(welcome.worker_id)
        for job in welcome.jobs:
            if self.executor.owns(job.handle):
                self._jobs[job.lease_id] = _Job(job.lease_id, job.job_id, job.run_name, job.kind, job.handle)
        log.info("worker %s asks %s for jobs, and has %d", self.name, self.plan.platform_url, len(self._jobs))
        if welcome.note:
            log.warning("worker %s: %s", self.name, welcome.note)

    def _round(self) -> worker_api.WorkerRound:
        states = self._look()
        reports = [_job_word(job, states.get(job.lease_id)) for job in self._jobs.values()]
        serving = {job.lease_id for job in self._jobs.values() if job.kind == "serving"}
        alive = {word.lease_id for word in reports if word.alive}
        return worker_api.WorkerRound(
            worker_id=self._id,
            jobs=reports,
            slots=max(0, self.plan.max_jobs - len(alive - serving)),
            places=max(0, self.plan.max_deployments - len(alive & serving)),
            queue_s=self.plan.queue_s,
            kept=self._list_folders(),
        )

    def _look(self) -> dict[str, JobState]:
        return self._poller.poll({job.lease_id: job.handle for job in self._jobs.values() if job.handle is not None})

    def _start(self, orders: Sequence[worker_api.JobOrder]) -> None:
        for order in orders:
            log.info("run %s: claimed", order.run_name)
            self._jobs[order.lease_id] = _Job(order.lease_id, order.job_id, order.run_name, order.kind)
        jobs = [self._jobs[order.lease_id] for order in orders]
        starts = [self._job_start(order) for order in orders]
        self._poller.run(lambda: self._begin(jobs, starts))
        self._report_started()

    def _job_start(self, order: worker_api.JobOrder) -> JobStart:
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
            handles, problem_text = self.executor.start(starts), ""
        except (OsmosisError, OSError) as problem:  # a full disk, say: tried again, and the run says why
            reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            handles, problem_text = [], f"its job could not be started: {reason}"
        for number, job in enumerate(jobs):
            report = worker_api.JobStarted(
                worker_id=self._id, job_id=job.job_id, lease_id=job.lease_id, problem=problem_text
            )
            if handles:
                job.handle = handles[number]
                report = report.model_copy(update={"handle": job.handle})
            self._pending_reports.append(report)

    def _report_started(self) -> None:
        while self._pending_reports:
            report = self._pending_reports[0]
            if report.problem:
                self._jobs.pop(report.lease_id, None)
            self.desk.started(report)
            self._pending_reports.popleft()

    def _kill(self, job: _Job) -> None:
        self._poller.run(lambda: self.executor.kill(job.handle) if job.handle is not None else None)

    # --- folders ---

    def _list_folders(self) -> list[str]:
        now = time.monotonic()
        if not self.plan.own_folders or now - self._folders_at < FOLDERS_EVERY_S or not self.plan.runs_dir.is_dir():
            return []
        self._folders_at = now
        return sorted(entry.name for entry in self.plan.runs_dir.iterdir() if entry.is_dir())[:500]

    # --- the end ---

    def _end_own_jobs(self) -> None:
        """End the jobs on this machine; a scheduler's jobs go on, and the next worker finds them."""
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
            self._poller.close()  # a start that was begun is told before
            try:
                self._report_started()
                self.desk.leave(worker_api.WorkerLeaves(worker_id=self._id, jobs=[_job_word(job, None) for job in own]))
            except OsmosisError as problem:
                log.warning("the platform was not told that this worker ends: %s", problem)
        self._jobs.clear()


def _job_word(job: _Job, seen: JobState | None) -> worker_api.JobWord:
    state = seen if seen is not None and job.wanted else JobState(alive=job.wanted)
    return worker_api.JobWord(job_id=job.job_id, lease_id=job.lease_id, **asdict(state))


class WorkerIdentity:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: FileLock | None = None
        self._file: Path | None = None

    def take(self) -> list[str]:
        """Return the ids of workers that are gone, first the one whose file this worker takes."""
        if self._file is not None:
            return [worker_id] if (worker_id := _read(self._file)) else []
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ids = []
        used = sorted(int(file.stem.removeprefix("worker-")) for file in self._folder.glob("worker-*.lock"))
        for number in [*used, max(used, default=0) + 1]:
            file, lock = self._folder / f"worker-{number}", FileLock(self._folder / f"worker-{number}.lock")
            if not lock.take():
                continue  # its worker lives
            if worker_id := _read(file):
                ids.append(worker_id)
            if self._held is None:
                self._held, self._file = lock, file
            else:
                file.unlink(missing_ok=True)
                lock.release()
        return ids

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
