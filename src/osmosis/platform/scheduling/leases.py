"""Leases: which process works on a job, and until when; writes with another token are dropped (`LeaseLost`). A job that
a scheduler started gets its lease for a ticket, good for one start: a scheduler stores and logs what it is given."""

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.net import backoff_delay
from osmosis.errors import AuthRequired, Conflict, LeaseLost, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.auth.tokens import JOB_PREFIX, TICKET_PREFIX, hash_token, new_token
from osmosis.platform.db import count_of
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import shards
from osmosis.platform.scheduling.transitions import Loss, change_state, count_loss, explain_giving_up, skip
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.tables import QueueState
from osmosis.platform.vault import Vault
from osmosis.platform.workspaces import secrets
from osmosis.records.api.workers import JobClaim
from osmosis.records.base import utc_now
from osmosis.records.run.job import HeartbeatReply, JobResult, Progress, Stage
from osmosis.records.run.plan import Retry
from osmosis.records.run.rollout import Category
from osmosis.records.run.status import RunStatus

log = logging.getLogger(__name__)

SHARDS_SUMMED_EVERY = timedelta(seconds=1)
MAX_PAUSE_S = 300.0
LOCAL = "local"
WORKERS_FORGOTTEN_AFTER = timedelta(days=7)
HEARTBEATS_PER_SECOND = 50
MAX_INTERVAL_S = 30.0
LEASE_INTERVALS = 4  # A lease lasts at least this many heartbeat intervals, so that a job may miss some
MAX_ENDPOINT_PAUSE_S = Retry().rate_limit_budget_s


@dataclass(frozen=True, slots=True)
class HeldJob:
    work: tables.Work
    job: tables.Job

    @property
    def run(self) -> tables.Run:
        if not isinstance(self.work, tables.Run):
            raise Conflict(f"{self.work.name!r} is not a run")
        return self.work


def _of_lease(token: str) -> sa.Select[tables.Job]:
    return sa.select(tables.Job).where(tables.Job.lease_hash == hash_token(token))


def require_lease(session: Session, work_id: str, token: str) -> HeldJob:
    """Return the token's job; raise LeaseLost if another process has it, or the work is over."""
    job = session.scalars(_of_lease(token).with_for_update()).first()
    work = lifecycle.find_work(session, work_id)
    if work is None:
        raise NotFound(f"no run {work_id}")
    if job is None or job.work_id != work_id:
        raise LeaseLost(f"another job has taken over run {work.name!r}")
    if job.state != tables.QueueState.HELD or work.status != RunStatus.RUNNING.value:
        raise LeaseLost(f"run {work.name!r} is {work.status}")
    return HeldJob(work, job)


def require_reader(session: Session, work_id: str, token: str) -> tables.Job:
    job = session.scalars(_of_lease(token)).first()
    if job is None or job.work_id != work_id or job.state == tables.QueueState.WAITING:
        raise LeaseLost("another job has taken over this run")
    return job


def find_run_of_lease(session: Session, token: str) -> tables.Run | None:
    job = session.scalars(_of_lease(token)).first()
    run = session.get(tables.Run, job.run_id) if job is not None and job.run_id else None
    is_held = job is not None and job.state == tables.QueueState.HELD
    return run if run is not None and is_held and run.status == RunStatus.RUNNING.value else None


def find_end_status(session: Session, work_id: str, token: str) -> str | None:
    job = session.scalars(_of_lease(token)).first()
    return job.status if job is not None and job.work_id == work_id and job.state == tables.QueueState.OVER else None


def find_held(session: Session, job_id: str, lease_hash: str) -> HeldJob | None:
    job = session.get(tables.Job, job_id, with_for_update=True)
    if job is None or job.lease_hash != lease_hash or job.state != tables.QueueState.HELD:
        return None
    return HeldJob(lifecycle.get_work(session, job), job)


def extend(job: tables.Job, lease_s: float, now: datetime | None = None) -> None:
    """Extend a lease, never shorten it: a job that speaks seldom has a longer one."""
    until = (now or utc_now()) + timedelta(seconds=lease_s)
    job.lease_until = max(until, job.lease_until or until)


def take_secrets(session: Session, vault: Vault, held_job: HeldJob, taker: str) -> dict[str, str]:
    """Return the secrets, to one `taker` for each lease: it may ask again, as an answer can be lost."""
    digest = hash_token(taker)
    if held_job.job.secrets_taker not in (None, digest):
        raise Conflict("the secrets of this job were handed over already")
    held_job.job.secrets_taker = digest
    return secrets.use_for(session, vault, held_job.work)


def heartbeat(session: Session, held_job: HeldJob, progress: Progress, lease_s: float) -> HeartbeatReply:
    work, job = held_job.work, held_job.job
    interval_s = heartbeat_interval_s(session)
    extend(job, max(lease_s, LEASE_INTERVALS * interval_s))
    if progress.pause_s:
        until = utc_now() + timedelta(seconds=min(progress.pause_s, MAX_ENDPOINT_PAUSE_S))
        job.paused_until = max(until, job.paused_until or until)
    reply = HeartbeatReply(stop=work.stop_requested_at is not None)
    now = utc_now()
    others = tables.Job.workspace_id == job.workspace_id, tables.Job.endpoint == job.endpoint, tables.Job.id != job.id
    query = sa.select(sa.func.max(tables.Job.paused_until)).where(tables.Job.paused_until > now, *others)
    if (others_until := session.scalar(query)) is not None:
        reply.pause_s = (others_until - now).total_seconds()
    if interval_s:
        reply.every_s = interval_s
    stored = tables.StoredProgress(
        stage=progress.stage.value, completed=progress.completed, total=progress.total, in_flight=progress.in_flight
    )
    if progress.sandbox:
        stored["sandbox"] = progress.sandbox
    if job.shards > 1:
        job.progress = stored
        if progress.report is not None:
            job.report = progress.report.to_dict()
        jobs, now = lifecycle.list_jobs(session, held_job.run), utc_now()
        if now - held_job.run.updated_at > SHARDS_SUMMED_EVERY or progress.completed == progress.total:
            shards.add_up(held_job.run, jobs)
            held_job.run.updated_at = now
        reply.concurrency = shards.share_now(held_job.run, job, jobs)
        reply.elsewhere = shards.sum_spend([other for other in jobs if other is not job])
        return reply
    work.progress = stored
    if progress.stage is Stage.SERVING and isinstance(work, tables.Deployment):
        stored["endpoint"] = progress.endpoint
        note_progress(job)
    if progress.report is not None and isinstance(work, tables.Run):
        work.report = progress.report.to_dict()
    work.updated_at = utc_now()
    return reply


def note_progress(job: tables.Job) -> None:
    """Forget earlier losses: only starts without progress count."""
    job.lost, job.starts = 0, min(job.starts, 1)


def release(session: Session, held_job: HeldJob, reason: str, *, max_starts: int, loss: Loss) -> None:
    work, job = held_job.work, held_job.job
    change_state(job, "release")
    count_loss(job, loss)
    if work.progress and "endpoint" in work.progress:
        work.progress = {**work.progress, "endpoint": ""}
    if work.stop_requested_at is not None and job.shards > 1:
        skip(job)
    elif work.stop_requested_at is not None:
        lifecycle.end(session, work, JobResult(status=RunStatus.STOPPED), "stopped by request")
    elif giving_up := explain_giving_up(job, max_starts):
        fix = "read the run's log, then retry the run"
        message = f"{giving_up}; last time: {reason}"
        lifecycle.fail(session, work, message, fix=fix, category=Category.SERVER_DIED, reason=reason)
    else:
        lifecycle.log(session, work, reason, level="warning")


def pause(job: tables.Job, base_s: float) -> float:
    """Delay the next start of a job that its executor refused; return the seconds, 0 if there is none."""
    if job.state != tables.QueueState.WAITING or not base_s:
        return 0.0
    seconds = backoff_delay(max(1, job.lost), base_s=base_s, max_s=MAX_PAUSE_S)
    job.not_before = utc_now() + timedelta(seconds=seconds)
    return seconds


def finish(session: Session, held_job: HeldJob, result: JobResult, *, max_starts: int) -> None:
    """Store the result of a job. `stopped` without a request or failure was an interruption: the run resumes."""
    work, job = held_job.work, held_job.job
    if result.status is RunStatus.STOPPED and work.stop_requested_at is None and result.failure is None:
        if result.report is not None and job.shards == 1:
            held_job.run.report = result.report.to_dict()
        worker = session.get(tables.Worker, job.worker_id) if job.worker_id else None
        by_scheduler = worker is not None and worker.executor != LOCAL
        loss = Loss.SCHEDULER_ENDED if by_scheduler else Loss.INTERRUPTED
        release(session, held_job, "the job was interrupted", max_starts=max_starts, loss=loss)
        return
    job.status = result.status.value
    if job.shards == 1 or result.status is RunStatus.FAILED:
        lifecycle.end(session, work, result if job.shards == 1 else result.model_copy(update={"report": None}), "")
        return
    _finish_shard(session, held_job, result)


def _finish_shard(session: Session, held_job: HeldJob, result: JobResult) -> None:
    run, job = held_job.run, held_job.job
    change_state(job, "finish")
    if result.report is not None:
        job.report = result.report.to_dict()
        total, completed = result.report.total, result.report.completed
        counts = tables.StoredProgress(stage=Stage.REPORT.value, total=total, completed=completed)
        job.progress = {**(job.progress or {}), **counts}
    jobs = lifecycle.list_jobs(session, run)
    if result.failure is not None:
        reason = f"shard {job.shard + 1} of {job.shards}: {result.failure.message}"
        lifecycle.log(session, run, reason, level="warning")
        # A budget is that of the run, a time limit that of the job: the others have theirs.
        if result.failure.category is not Category.TIMEOUT:
            lifecycle.skip_waiting(jobs)
    shards.add_up(run, jobs)


def reap(platform: Platform, *, gap: str = "", now: datetime | None = None) -> None:
    """Release expired leases (after a `gap` extend each once), forget lost workers, end runs of shards."""
    settings, now = platform.settings, now or utc_now()
    with platform.db.write() as session:
        # Bring back what a clock that was set back since left too far in the future: a dead job would hold its lease.
        for column, seconds in (
            (tables.Job.lease_until, max(settings.lease_s, LEASE_INTERVALS * MAX_INTERVAL_S)),
            (tables.Job.not_before, MAX_PAUSE_S),
            (tables.Job.paused_until, MAX_ENDPOINT_PAUSE_S),
            (tables.Worker.last_seen, 0.0),
        ):
            latest = now + timedelta(seconds=seconds)
            session.execute(sa.update(column.class_).where(column > latest).values({column: latest}))
        expired = sa.select(tables.Job).where(tables.Job.state == tables.QueueState.HELD, tables.Job.lease_until < now)
        for job in session.scalars(expired).all():
            if gap:
                extend(job, settings.lease_s, now)
                lifecycle.log(session, lifecycle.get_work(session, job), f"{gap}; the job continues")
            elif (loss := _find_loss(session, settings, job, now)) is not None:
                held_job = HeldJob(lifecycle.get_work(session, job), job)
                reason = "the job sent nothing and its lease expired"
                log.info("run %s: %s", held_job.work.name, reason)
                release(session, held_job, reason, max_starts=settings.max_starts, loss=loss)
        lost = tables.Worker.last_seen < now - WORKERS_FORGOTTEN_AFTER
        session.execute(sa.delete(tables.Worker).where(lost))
        mergeable = shards.list_mergeable(session)
    for run_id in mergeable:
        shards.merge(platform, run_id)
    with suppress(FileNotFoundError):
        folders = [entry.name for entry in settings.sent_dir.iterdir()]
        with platform.db.read() as session:
            over = lifecycle.list_over(session, folders)
        for run_id in over:
            shutil.rmtree(settings.sent_dir / run_id, ignore_errors=True)


def _find_loss(session: Session, settings: PlatformSettings, job: tables.Job, now: datetime) -> Loss | None:
    worker = session.get(tables.Worker, job.worker_id) if job.worker_id else None
    if worker is None or job.lease_until is None:
        return Loss.WORKER_LOST
    grace = timedelta(seconds=max(5.0, settings.lease_s / 4))
    if now - worker.last_seen > grace:
        return Loss.WORKER_LOST
    return Loss.SILENT if now - job.lease_until > grace else None


def heartbeat_interval_s(session: Session) -> float:
    running = count_of(session, sa.select(tables.Job).where(tables.Job.state == tables.QueueState.HELD))
    seconds = running / HEARTBEATS_PER_SECOND
    return 0.0 if seconds <= 1.0 else min(MAX_INTERVAL_S, seconds)


def issue_ticket(job: tables.Job, queue_s: float) -> str:
    ticket = new_token(TICKET_PREFIX)
    job.ticket_hash, job.ticket_taker = hash_token(ticket), None
    job.ticket_until = utc_now() + timedelta(seconds=queue_s)
    return ticket


def has_open_ticket(job: tables.Job) -> bool:
    return job.state == QueueState.HELD and job.ticket_hash is not None and job.ticket_taker is None


def explain_expired_ticket(work: tables.Work, job: tables.Job) -> str:
    if work.stop_requested_at is not None:
        return "stopped before its job began"
    if job.ticket_until is not None and job.ticket_until < utc_now():
        return f"its job waited until its ticket expired ({job.place or f'with {job.worker}'})"
    return ""


def redeem_ticket(session: Session, ticket: str, claim: JobClaim, lease_s: float) -> str:
    """Redeem a ticket for a new lease token; empty if another process has used it. Raise AuthRequired."""
    query = sa.select(tables.Job).where(tables.Job.ticket_hash == hash_token(ticket))
    job = session.scalars(query.with_for_update()).first()
    now, taker = utc_now(), hash_token(claim.taker)
    if job is None or job.work_id != claim.run_id or job.ticket_until is None:
        raise AuthRequired("this ticket is not valid, or no longer: the job was given up or started again")
    work = lifecycle.get_work(session, job)
    if job.state != QueueState.HELD or work.status != RunStatus.RUNNING.value or work.stop_requested_at is not None:
        raise AuthRequired(f"run {work.name!r} does not wait for this job any more")
    if job.ticket_taker not in (None, taker):
        job.ticket_hash = None
        message = "the ticket of its job was presented a second time, by another process, and refused"
        lifecycle.log(session, work, message, level="warning")
        return ""
    if job.ticket_taker is None and job.ticket_until < now:
        raise AuthRequired("this ticket has expired: the job waited too long in its queue")
    token = new_token(JOB_PREFIX)
    if job.ticket_taker is None:
        begun = f"job begun by {job.worker}"
        lifecycle.log(session, work, f"{begun} ({job.place})" if job.place else begun)
    job.ticket_taker, job.place, job.secrets_taker = taker, None, None
    job.lease_hash = hash_token(token)
    job.lease_until = now + timedelta(seconds=lease_s)
    return token


def extend_in_scheduler(platform: Platform, waiting: Iterable[tuple[str, str, str]]) -> None:
    """Extend the leases of jobs (id, lease id, place) in a scheduler, and log new places."""
    lease_s, now = platform.settings.lease_s, utc_now()
    for job_id, lease_id, position in waiting:
        with platform.db.write() as session:
            job = session.get(tables.Job, job_id, with_for_update=True)
            if job is None or not has_open_ticket(job) or job.lease_id != lease_id:
                continue
            job.lease_until = now + timedelta(seconds=lease_s)
            if position and position != job.place:
                job.place = position
                lifecycle.log(session, lifecycle.get_work(session, job), position)


def is_scheduler_news(job: tables.Job, position: str, lease_s: float) -> bool:
    soon = job.lease_until is None or job.lease_until - utc_now() < timedelta(seconds=lease_s / 2)
    return has_open_ticket(job) and (soon or (bool(position) and position != job.place))


def find_scheduler_place(session: Session, run: tables.Run) -> str:
    begun = sa.select(tables.Job).where(tables.Job.run_id == run.id, tables.Job.state != QueueState.WAITING)
    jobs = list(session.scalars(begun.order_by(tables.Job.shard)))
    if not jobs or not all(has_open_ticket(job) for job in jobs):
        return ""
    return next((job.place for job in jobs if job.place), "")
