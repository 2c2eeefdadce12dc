"""Workers, as they talk to the platform and as people manage them: operators those of all workspaces, owners and admins
those of theirs. A report counts only while the job is that worker's under that lease."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis._version import __version__
from osmosis.errors import Forbidden, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import job_spec, leases, queue
from osmosis.platform.scheduling.transitions import Loss
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.tables import QueueState
from osmosis.platform.workspaces import audit, secrets
from osmosis.records.api import workers as worker_api
from osmosis.records.api.workers import WorkerRow
from osmosis.records.base import utc_now
from osmosis.records.run.job import JOB_PROTOCOL
from osmosis.records.run.rollout import Category

log = logging.getLogger(__name__)

LOST_AFTER_S = queue.LOST_AFTER.total_seconds()
ROUNDS_PER_SECOND = 50


@dataclass(frozen=True, slots=True)
class WorkerDesk:
    """The platform, as a worker talks to it; its own worker has no token."""

    platform: Platform
    token_id: str | None = None
    workspace_id: str | None = None
    was_unreachable: Callable[[], bool] = lambda: False
    """Return whether heartbeats may be lost. Asked outside of a transaction, before a silent job is ended."""

    @property
    def embedded(self) -> bool:
        return self.token_id is None

    def hello(self, hello: worker_api.WorkerHello) -> worker_api.WorkerWelcome:
        with self.platform.db.write() as session:
            query = sa.select(tables.Worker).where(tables.Worker.id.in_(hello.ids[:100]))
            query = query.filter_by(embedded=self.embedded, workspace_id=self.workspace_id)
            rows = {row.id: row for row in session.scalars(query)}
            earlier = [rows[worker_id] for worker_id in hello.ids if worker_id in rows]
            worker = earlier[0] if earlier else tables.Worker(id=tables.new_id(), created_at=utc_now())
            if worker.removed_at is not None:
                raise Forbidden(f"worker {worker.name!r} was removed", hint="start it again without its folder's state")
            since = utc_now() - timedelta(seconds=LOST_AFTER_S)
            others = sa.select(tables.Worker.name).where(
                tables.Worker.id != worker.id, tables.Worker.removed_at.is_(None), tables.Worker.last_seen > since
            )
            names, free, count = set(session.scalars(others)), hello.name, 1
            while free in names:
                count += 1
                free = f"{hello.name}-{count}"
            worker.name = free
            worker.token_id, worker.workspace_id, worker.embedded = self.token_id, self.workspace_id, self.embedded
            worker.machine, worker.version, worker.protocol = hello.machine, hello.version, hello.protocol
            worker.executor, worker.kinds, worker.max_jobs = hello.executor, list(hello.kinds), hello.max_jobs
            worker.labels, worker.resources, worker.sandbox = hello.labels, hello.resources.to_dict(), hello.sandbox
            worker.draining, worker.slots, worker.last_seen = False, 0, utc_now()
            session.add(worker)
            session.flush()
            jobs = _adopt_jobs(session, self.platform.settings, worker, [row.id for row in earlier])
            for other in earlier[1:]:
                session.delete(other)
            return worker_api.WorkerWelcome(
                worker_id=worker.id, name=worker.name, version=__version__, note=explain_unfit(worker), jobs=jobs
            )

    def round(self, report: worker_api.WorkerRound) -> worker_api.WorkerOrders:
        platform, settings = self.platform, self.platform.settings
        if report.jobs:
            self.was_unreachable()  # checked at every round, so that an absence is known when it matters
        _extend_after_gap(self, report)
        with platform.db.read() as session:
            worker = _require_worker(session, self, report.worker_id)
            checked = [_find_end(session, settings, worker, job) for job in report.jobs]
            ends = [end for end in checked if end is not None]
            among = None
            if (report.slots or report.places) and not worker.draining and not explain_unfit(worker):
                among = queue.waiting_jobs_for(worker, others=report.slots > 0, deployments=report.places > 0)
            has_work = among is not None and session.scalars(among.limit(1)).first() is not None
            since = utc_now() - timedelta(seconds=LOST_AFTER_S)
            alive = count_of(session, sa.select(tables.Worker).where(tables.Worker.last_seen > since))
            over = lifecycle.list_over(session, report.kept)
            in_scheduler = [
                (job.job_id, job.lease_id, job.place)
                for job in report.jobs
                if job.alive
                and (held_job := _find_held_by(session, worker, job.job_id, job.lease_id)) is not None
                and leases.is_scheduler_news(held_job.job, job.place, settings.lease_s)
            ]
        if any(end.silent for end in ends) and self.was_unreachable():
            ends = [end for end in ends if not end.silent]
        for end in ends:
            _end_job(platform, end)
        leases.extend_in_scheduler(platform, in_scheduler)
        note_every = timedelta(seconds=min(2.0, settings.lease_s / 8))
        if utc_now() - worker.last_seen > note_every or worker.slots != report.slots:
            with platform.db.write() as session:
                row = sa.update(tables.Worker).where(tables.Worker.id == worker.id)
                session.execute(row.values(last_seen=utc_now(), slots=report.slots))
        orders = _give_jobs(platform, worker, among, report) if has_work and among is not None else []
        return worker_api.WorkerOrders(
            end=[end.report.lease_id for end in ends],
            start=orders[0] if orders else None,
            more=orders[1:],
            drain=worker.draining,
            forget=over,
            poll_s=max(settings.poll_s, alive / ROUNDS_PER_SECOND),
        )

    def started(self, report: worker_api.JobStarted) -> None:
        with self.platform.db.write() as session:
            worker = _require_worker(session, self, report.worker_id)
            held_job = _find_held_by(session, worker, report.job_id, report.lease_id)
            if held_job is None:
                return
            if report.problem:
                log.warning("run %s: %s", held_job.work.name, report.problem)
                max_starts = self.platform.settings.max_starts
                leases.release(session, held_job, report.problem, max_starts=max_starts, loss=Loss.START_REFUSED)
                if pause_s := leases.pause(held_job.job, self.platform.settings.start_pause_s):
                    lifecycle.log(session, held_job.work, f"the next try follows in {pause_s:.0f} s")
                return
            held_job.job.handle = report.handle
            where = "" if self.embedded else f" on {worker.name}"
            process, number = (report.handle or {}).get("pid"), (report.handle or {}).get("id")
            message = f"job started{where}" + (f" (process {process})" if process else "")
            if number is not None:
                message = f"{worker.name} gave its job to {worker.executor}, as job {number}"
            lifecycle.log(session, held_job.work, message)

    def leave(self, report: worker_api.WorkerLeaves) -> None:
        with self.platform.db.write() as session:
            worker = _require_worker(session, self, report.worker_id)
            worker.slots = -1  # until it asks again
            reason, max_starts = f"{_describe(worker)} was stopped", self.platform.settings.max_starts
            for job in report.jobs:
                if (held_job := _find_held_by(session, worker, job.job_id, job.lease_id)) is not None:
                    leases.release(session, held_job, reason, max_starts=max_starts, loss=Loss.WORKER_STOPPED)


def explain_unfit(worker: tables.Worker) -> str:
    if worker.protocol == JOB_PROTOCOL:
        return ""
    return (
        f"osmosis {worker.version} speaks another job protocol ({worker.protocol}) than this platform "
        f"({JOB_PROTOCOL}, osmosis {__version__}): install osmosis-ai=={__version__} there"
    )


def list_held_jobs(session: Session, worker_ids: Sequence[str]) -> list[tables.Job]:
    query = sa.select(tables.Job).where(tables.Job.worker_id.in_(worker_ids), tables.Job.state == QueueState.HELD)
    return list(session.scalars(query))


@dataclass(frozen=True, slots=True)
class _End:
    report: worker_api.JobWord
    lease_hash: str = ""
    reason: str = ""
    silent: bool = False

    @property
    def loss(self) -> Loss:
        if self.report.cause == "machine":
            return Loss.MACHINE_LOST
        return Loss.SILENT if self.silent else Loss.EXITED


def _find_end(
    session: Session, settings: PlatformSettings, worker: tables.Worker, report: worker_api.JobWord
) -> _End | None:
    held_job = _find_held_by(session, worker, report.job_id, report.lease_id)
    if held_job is None:
        return _End(report)
    job, work, now = held_job.job, held_job.work, utc_now()
    reason, silent = "", False
    if not report.alive:
        end = f"ended with exit code {report.exit_code}" if report.exit_code is not None else "is gone"
        reason = report.reason or f"the job {end} without a result"
        reason += f"; its last output:\n{report.words}" if report.words else ""
    elif leases.has_open_ticket(job) and (expiry := leases.explain_expired_ticket(work, job)):
        reason = expiry
    elif work.stop_requested_at is not None and _is_stop_overdue(session, settings, held_job, now):
        reason = "the job did not stop in time and was killed"
    elif job.lease_until is not None and job.lease_until < now:
        reason, silent = f"the job sent no heartbeat for {settings.lease_s:g} s and was killed", True
    return _End(report, job.lease_hash or "", reason, silent) if reason else None


def _end_job(platform: Platform, end: _End) -> None:
    if not end.reason:
        return
    with platform.db.write() as session:
        held_job = leases.find_held(session, end.report.job_id, end.lease_hash)
        if held_job is None:
            return
        log.info("run %s: %s", held_job.work.name, end.reason)
        if end.report.cause == "final" and held_job.work.stop_requested_at is None:
            fix = "what is stored is kept: change what is said above, then retry the run"
            lifecycle.fail(session, held_job.work, end.reason, fix=fix, category=Category.SERVER_DIED)
            return
        leases.release(session, held_job, end.reason, max_starts=platform.settings.max_starts, loss=end.loss)


def _is_stop_overdue(session: Session, settings: PlatformSettings, held_job: leases.HeldJob, now: datetime) -> bool:
    grace_s = settings.training_stop_grace_s if held_job.job.kind == "training" else settings.stop_grace_s
    heard = timedelta(seconds=grace_s + leases.heartbeat_interval_s(session))
    requested_at = held_job.work.stop_requested_at
    return requested_at is not None and now - requested_at > heard


def _extend_after_gap(desk: WorkerDesk, report: worker_api.WorkerRound) -> None:
    settings, now = desk.platform.settings, utc_now()
    with desk.platform.db.read() as session:
        worker = _require_worker(session, desk, report.worker_id)
    gap_s = (now - worker.last_seen).total_seconds()
    if gap_s < max(settings.lease_s / 4, 4 * settings.poll_s):
        return
    with desk.platform.db.write() as session:
        for job in report.jobs:
            held_job = _find_held_by(session, worker, job.job_id, job.lease_id) if job.alive else None
            if held_job is not None and held_job.job.lease_until is not None and held_job.job.lease_until < now:
                leases.extend(held_job.job, settings.lease_s)
                message = f"{_describe(worker)} was suspended for {gap_s:.0f} s; the job continues"
                lifecycle.log(session, held_job.work, message)


def _give_jobs(
    platform: Platform, worker: tables.Worker, among: sa.Select[tables.Job], report: worker_api.WorkerRound
) -> list[worker_api.JobOrder]:
    first = _give_job(platform, worker, among, report.queue_s)
    if first is None:
        return []
    orders = [first]
    of_run = among.where(tables.Job.run_id == first.run_id)
    while worker.executor != leases.LOCAL and len(orders) < report.slots:
        order = _give_job(platform, worker, of_run, report.queue_s)
        if order is None:
            break
        orders.append(order)
    return orders


def _give_job(
    platform: Platform, worker: tables.Worker, among: sa.Select[tables.Job], queue_s: float
) -> worker_api.JobOrder | None:
    with platform.db.write() as session:
        claimed = queue.claim(session, worker, platform.settings.lease_s, among)
        if claimed is None:
            return None
        log.info("run %s: claimed by %s", claimed.work.name, worker.name)
        if not _check_startable(platform, session, claimed):
            return None
        local = worker.executor == leases.LOCAL
        return worker_api.JobOrder(
            job_id=claimed.job.id,
            lease_id=claimed.job.lease_id or "",
            run_id=claimed.work.id,
            run_name=claimed.work.name,
            kind=claimed.job.kind,
            folder=lifecycle.work_folder(claimed.work, claimed.job),
            lease=claimed.token if local else "",
            ticket="" if local else leases.issue_ticket(claimed.job, queue_s),
            needs=queue.read_needs(claimed.work),
        )


def _check_startable(platform: Platform, session: Session, claimed: queue.Claimed) -> bool:
    try:
        job_spec.build_spec(session, platform.settings, claimed.job)
        secrets.values_for(session, platform.vault, claimed.work)
        return True
    except OsmosisError as error:
        problem = error
    except ValueError as error:  # what an earlier version stored
        problem = OsmosisError(f"this run cannot be started: {error}", hint="submit it again")
    lifecycle.fail(session, claimed.work, problem.message, fix=problem.hint, category=Category.UNKNOWN)
    return False


def _describe(worker: tables.Worker) -> str:
    return "the platform" if worker.embedded else "its worker"


def _find_held_by(session: Session, worker: tables.Worker, job_id: str, lease_id: str) -> leases.HeldJob | None:
    job = session.get(tables.Job, job_id)
    if job is None or job.state != QueueState.HELD or job.worker_id != worker.id or (job.lease_id or "") != lease_id:
        return None
    return leases.HeldJob(lifecycle.get_work(session, job), job)


def _adopt_jobs(
    session: Session, settings: PlatformSettings, worker: tables.Worker, ids: Sequence[str]
) -> list[worker_api.KeptJob]:
    kept_jobs = []
    for job in list_held_jobs(session, ids):
        work = lifecycle.get_work(session, job)
        if job.handle is None:
            held_job, reason = leases.HeldJob(work, job), "its worker was ended before it was started"
            leases.release(session, held_job, reason, max_starts=settings.max_starts, loss=Loss.NEVER_STARTED)
            continue
        job.worker_id, job.worker = worker.id, worker.name
        leases.extend(job, settings.lease_s)
        lifecycle.log(session, work, f"{_describe(worker)} was restarted; the job continues")
        lease_id = job.lease_id or ""
        kept_jobs.append(
            worker_api.KeptJob(job_id=job.id, lease_id=lease_id, run_name=work.name, kind=job.kind, handle=job.handle)
        )
    return kept_jobs


def _require_worker(session: Session, desk: WorkerDesk, worker_id: str) -> tables.Worker:
    worker = session.get(tables.Worker, worker_id)
    if worker is None or worker.removed_at is not None:
        raise Forbidden("this worker was removed", hint="start it again: osmosis worker start")
    if worker.embedded != desk.embedded or worker.workspace_id != desk.workspace_id:
        raise Forbidden("this is another worker's id")
    return worker


def list_visible(session: Session, user: tables.User) -> list[tables.Worker]:
    mine = sa.select(tables.Member.workspace_id).where(tables.Member.user_id == user.id)
    visible = sa.or_(tables.Worker.workspace_id.is_(None), tables.Worker.workspace_id.in_(mine))
    query = sa.select(tables.Worker).where(tables.Worker.removed_at.is_(None), visible)
    return list(session.scalars(query.order_by(tables.Worker.name, tables.Worker.created_at)))


def list_rows(session: Session, user: tables.User) -> list[WorkerRow]:
    visible = list_visible(session, user)
    ids = [worker.id for worker in visible]
    by_worker: dict[str, list[str]] = {worker_id: [] for worker_id in ids}
    for job in list_held_jobs(session, ids):
        by_worker[str(job.worker_id)].append(lifecycle.get_work(session, job).name)
    return [
        WorkerRow.from_row(
            worker,
            state=describe_state(worker),
            note=explain_unfit(worker),
            workspace=worker.workspace.name if worker.workspace else None,
            runs=sorted(by_worker[worker.id]),
        )
        for worker in visible
    ]


def may_manage(session: Session, user: tables.User, worker: tables.Worker) -> bool:
    member = session.get(tables.Member, (worker.workspace_id, user.id)) if worker.workspace_id else None
    return user.operator or (member is not None and member.role in ("owner", "admin"))


def require_managed(session: Session, user: tables.User, name_or_id: str) -> tables.Worker:
    workers = list_visible(session, user)
    worker = next((worker for worker in workers if name_or_id in (worker.name, worker.id)), None)
    if worker is None:
        raise NotFound(f"no worker named {name_or_id!r}", hint="osmosis worker list")
    if not may_manage(session, user, worker):
        whose = "an owner or admin of its workspace" if worker.workspace_id else "an operator of the platform"
        raise Forbidden(f"worker {worker.name!r} is directed by {whose}")
    return worker


def drain(session: Session, actor: audit.Actor, worker: tables.Worker) -> None:
    worker.draining = True
    audit.note(session, actor, "worker.drain", worker.name, workspace=worker.workspace)


def remove(platform: Platform, session: Session, actor: audit.Actor, worker: tables.Worker) -> int:
    if worker.embedded and describe_state(worker) != "lost":
        message = f"worker {worker.name!r} is the platform's own"
        raise Forbidden(message, hint="start the platform without it: osmosis platform start --no-worker")
    worker.removed_at = utc_now()
    jobs = list_held_jobs(session, [worker.id])
    for job in jobs:
        held_job = leases.HeldJob(lifecycle.get_work(session, job), job)
        reason = f"worker {worker.name} was removed"
        leases.release(session, held_job, reason, max_starts=platform.settings.max_starts, loss=Loss.WORKER_REMOVED)
    audit.note(session, actor, "worker.remove", worker.name, workspace=worker.workspace, released=len(jobs))
    return len(jobs)


def describe_state(worker: tables.Worker) -> str:
    if utc_now() - worker.last_seen > timedelta(seconds=LOST_AFTER_S):
        return "lost"
    if worker.slots < 0:
        return "stopped"
    if explain_unfit(worker):
        return "unfit"
    if worker.draining:
        return "draining"
    return "idle" if worker.slots >= worker.max_jobs else "working"


def describe_sandboxes(platform: Platform, run: tables.Run) -> str | None:
    own = sa.or_(tables.Worker.workspace_id.is_(None), tables.Worker.workspace_id == run.workspace_id)
    with platform.db.read() as session:
        workers = session.scalars(sa.select(tables.Worker).where(tables.Worker.removed_at.is_(None), own))
        fit = [
            worker for worker in workers if describe_state(worker) in ("idle", "working") and run.kind in worker.kinds
        ]
    return "; or ".join(sorted({worker.sandbox for worker in fit})) or None
