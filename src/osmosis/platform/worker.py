"""The worker: takes runs from the queue and sees to it that each has exactly one living job.

Every step has three phases: load (a short session), work (processes, no session), apply (a short session, guarded
by the lease). All it knows is in the database, so a worker killed at any point is replaced by the next one: jobs
that still live are kept, jobs that are gone are started again from their journal. It runs no user code itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from osmosis.base.processes import is_same, start_token
from osmosis.errors import LeaseLost, NotFound, OsmosisError
from osmosis.records.base import utc_now
from osmosis.records.config import EvalConfig, TrainingConfig
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.run import Handover, JobResult, JobSpec, RunStatus

from . import Platform, tables
from .executors.executor import Executor, JobState
from .executors.local import LocalExecutor, machine_id
from .services import models, run_lifecycle, secrets
from .settings import PlatformSettings

log = logging.getLogger("osmosis.platform.worker")

SHUTDOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A running run, as loaded."""

    run_id: str
    name: str
    lease_hash: str
    lease_until: datetime
    worker: str
    handle: dict[str, object] | None
    stop_requested_at: datetime | None
    training: bool


class Worker:
    """One worker. `start` and `stop` run it in a thread; `step` is one round, for who drives it himself."""

    def __init__(self, platform: Platform, executor: Executor | None = None) -> None:
        self.platform = platform
        settings = platform.settings
        self.executor = executor or LocalExecutor(settings.job_command, settings.environ)
        self.name = f"{machine_id()}/{os.getpid()}/{start_token(os.getpid())}/{id(self):x}"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_step: datetime | None = None

    # --- life ---

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop, then the jobs this worker started; their runs go on with the next worker."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        self._end_own_jobs()

    def _run(self) -> None:
        self._guarded(self.adopt)
        while not self._stop.is_set():
            if not self._guarded(self.step):
                self._stop.wait(self.platform.settings.poll_s)

    def _guarded(self, action: Callable[[], object]) -> bool:
        try:
            return bool(action())
        except Exception:
            log.exception("a worker cycle failed")
            self._stop.wait(self.platform.settings.poll_s)
            return False

    # --- one round ---

    def step(self) -> bool:
        """Look after running jobs, then start at most one; whether one was started."""
        self._notice_a_gap()
        self.executor.reap()
        mine = 0
        for watched in self._running():
            if self._look_after(watched) and watched.worker == self.name:
                mine += 1
        return mine < self.platform.settings.max_jobs and self._start_next()

    def _notice_a_gap(self) -> None:
        """After a suspended machine, or when this process stood still: nobody could extend a lease, so each live job
        gets the time to do it before it counts as silent."""
        now, last = utc_now(), self._last_step
        self._last_step = now
        lease = timedelta(seconds=self.platform.settings.lease_s)
        if last is None or now - last < max(lease / 4, timedelta(seconds=4 * self.platform.settings.poll_s)):
            return
        for watched in self._running():
            if watched.handle is None or not self.executor.owns(watched.handle):
                continue
            if self.executor.poll(watched.handle).alive:
                self._extend(watched, f"the platform stood still for {(now - last).total_seconds():.0f} s")

    def _extend(self, watched: Watched, why: str) -> None:
        with self.platform.db.write() as session:
            run = session.get(tables.Run, watched.run_id, with_for_update=True)
            if run is not None and run.lease_hash == watched.lease_hash:
                run_lifecycle.extend(run, self.platform.settings.lease_s)
                run_lifecycle.log(session, run.id, f"{why}; the job continues")

    def adopt(self) -> None:
        """After a restart: jobs of a dead worker that still live are ours, and get time to report again."""
        for watched in self._running():
            if watched.handle is None or not self.executor.owns(watched.handle) or _worker_lives(watched.worker):
                continue
            if self.executor.poll(watched.handle).alive:
                with self.platform.db.write() as session:
                    run = session.get(tables.Run, watched.run_id, with_for_update=True)
                    if run is not None and run.lease_hash == watched.lease_hash:
                        run.worker = self.name
                        run_lifecycle.extend(run, self.platform.settings.lease_s)
                        run_lifecycle.log(session, run.id, "the platform was restarted; the job continues")

    def _running(self) -> list[Watched]:
        query = sa.select(tables.Run).where(
            tables.Run.status == RunStatus.RUNNING.value, tables.Run.lease_hash.is_not(None)
        )
        with self.platform.db.read() as session:
            return [
                Watched(
                    run.id,
                    run.name,
                    run.lease_hash or "",
                    run.lease_until or run.updated_at,
                    run.worker or "",
                    run.handle,
                    run.stop_requested_at,
                    run.kind == "training",
                )
                for run in session.scalars(query)
            ]

    def _look_after(self, watched: Watched) -> bool:
        """Whether the run's job still counts as working."""
        now = utc_now()
        expired = watched.lease_until < now
        if watched.handle is None or not self.executor.owns(watched.handle):
            if expired:
                self._release(watched, "the job sent nothing and its lease expired")
            return not expired
        state = self.executor.poll(watched.handle)
        if not state.alive:
            self.executor.kill(watched.handle)  # what it left behind
            self._release(watched, _obituary(state))
            return False
        if self._overdue(watched, now):
            self.executor.kill(watched.handle)
            self._release(watched, "the job did not stop in time and was killed")
            return False
        if expired:
            self.executor.kill(watched.handle)
            self._release(watched, f"the job sent no heartbeat for {self.platform.settings.lease_s:g} s and was killed")
            return False
        return True

    def _overdue(self, watched: Watched, now: datetime) -> bool:
        settings = self.platform.settings
        grace = timedelta(seconds=settings.training_stop_grace_s if watched.training else settings.stop_grace_s)
        return watched.stop_requested_at is not None and now - watched.stop_requested_at > grace

    def _release(self, watched: Watched, reason: str, *, count: bool = True) -> None:
        with self.platform.db.write() as session:
            run = session.get(tables.Run, watched.run_id, with_for_update=True)
            if run is None or run.lease_hash != watched.lease_hash or run.status != RunStatus.RUNNING.value:
                return
            log.info("run %s: %s", watched.name, reason)
            run_lifecycle.release(session, run, reason, max_starts=self.platform.settings.max_starts, count=count)

    # --- starting ---

    def _start_next(self) -> bool:
        with self.platform.db.read() as session:
            if not session.scalar(sa.select(sa.func.count()).select_from(run_lifecycle.waiting().subquery())):
                return False
        with self.platform.db.write() as session:
            claimed = run_lifecycle.claim(session, self.name, self.platform.settings.lease_s)
            if claimed is None:
                return False
            run, token = claimed
            run_id, name = run.id, run.name
        log.info("run %s: claimed", name)
        try:
            spec, values = self._load(run_id)
            handle = self.executor.start(spec, Handover(token=token, secrets=values))
        except OsmosisError as error:
            self._refuse(run_id, token, error)
            return True
        except OSError as error:  # a full disk, say: tried again like a job that died, and the run says why
            self._give_back(run_id, name, token, f"its job could not be started: {error.strerror or error}")
            return True
        except ValueError as error:  # what an earlier version stored
            self._refuse(run_id, token, OsmosisError(f"this run cannot be started: {error}", hint="submit it again"))
            return True
        try:
            self._note_handle(run_id, token, handle)
        except LeaseLost:
            self.executor.kill(handle)
        return True

    def _give_back(self, run_id: str, name: str, token: str, reason: str) -> None:
        log.warning("run %s: %s", name, reason)
        with self.platform.db.write() as session:
            try:
                run = run_lifecycle.of_lease(session, run_id, token)
            except LeaseLost:
                return
            run_lifecycle.release(session, run, reason, max_starts=self.platform.settings.max_starts)

    def _load(self, run_id: str) -> tuple[JobSpec, dict[str, str]]:
        settings = self.platform.settings
        with self.platform.db.read() as session:
            run = session.get_one(tables.Run, run_id, options=[undefer(tables.Run.rows)])
            repository = session.get(tables.Repository, run.repository_id) if run.repository_id else None
            if repository is None:
                raise OsmosisError("the repository of this run is no longer connected", hint="submit a new run")
            values = secrets.values_for_run(session, self.platform.vault, run)
            config_type = EvalConfig if run.kind == "eval" else TrainingConfig
            config = config_type.model_validate(run.config)
            model = _model_of(session, settings, run, config)
            work_dir = settings.runs_dir / run.id
            if run.retries:
                work_dir = work_dir / f"retry-{run.retries}"
            spec = JobSpec(
                run_id=run.id,
                run_name=run.name,
                kind="eval" if run.kind == "eval" else "training",
                platform_url=settings.job_base_url,
                repository=str(settings.located(repository.path)),
                commit_sha=run.commit_sha,
                config=config,
                dataset_path=str(settings.located(run.dataset_path)),
                dataset_rows=run.dataset_rows,
                rows=run.rows,
                secret_names=sorted(values),
                work_dir=str(work_dir),
                cache_dir=str(settings.cache_dir),
                workspace=run.workspace_id,
                sandbox=settings.sandbox,
                torch=settings.torch,
                model_path=model.base,
                adapter_path=model.adapter,
                models_dir=str(models.checkpoints_of(settings, run.id)),
            )
        return spec, values

    def _note_handle(self, run_id: str, token: str, handle: dict[str, object]) -> None:
        with self.platform.db.write() as session:
            run = run_lifecycle.of_lease(session, run_id, token)
            run.handle = handle
            with suppress(NotFound):  # deleted in this moment: there is nothing to write it beside
                secrets.note_use(session, run)
            run_lifecycle.log(session, run_id, f"job started (process {handle.get('pid')})")

    def _refuse(self, run_id: str, token: str, error: OsmosisError) -> None:
        """The run cannot be started at all: it failed, and says why."""
        failure = Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=error.message, fix=error.hint)
        with self.platform.db.write() as session:
            try:
                run = run_lifecycle.of_lease(session, run_id, token)
            except LeaseLost:
                return
            run_lifecycle.end(session, run, JobResult(status=RunStatus.FAILED, failure=failure), error.message)

    # --- the end ---

    def _end_own_jobs(self) -> None:
        own = [w for w in self._running() if w.worker == self.name and w.handle and self.executor.owns(w.handle)]
        for watched in own:
            self.executor.interrupt(watched.handle or {})
        deadline = time.monotonic() + SHUTDOWN_S
        for watched in own:
            while self.executor.poll(watched.handle or {}).alive and time.monotonic() < deadline:
                time.sleep(0.05)
            self.executor.kill(watched.handle or {})
            self._release(watched, "the platform was stopped", count=False)


def _model_of(
    session: Session, settings: PlatformSettings, run: tables.Run, config: EvalConfig | TrainingConfig
) -> models.Served:
    """What a job loads: the base model of a training run, a model of the platform in an evaluation, else nothing."""
    if isinstance(config, EvalConfig):
        own = run.model_path.startswith(PLATFORM_MODEL) and not config.advanced.base_url
        return models.served(session, settings, run.workspace_id, run.model_path) if own else models.Served("")
    if config.advanced.engine != "trl":  # which has models of its own
        return models.Served(config.experiment.model_path)
    return models.Served(models.resolve(session, settings, run.workspace_id, run.model_path))


def _worker_lives(name: str) -> bool:
    """Whether the process of a worker on this machine still runs; one elsewhere is taken to live."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] != machine_id():
        return True
    return parts[1] != str(os.getpid()) and is_same(int(parts[1]), parts[2])


def _obituary(state: JobState) -> str:
    how = f"ended with exit code {state.exit_code}" if state.exit_code is not None else "is gone"
    return f"the job {how} without a result" + (f"; its last output:\n{state.words}" if state.words else "")
