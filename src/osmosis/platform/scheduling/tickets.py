"""Tickets, for which a job that a scheduler started gets its lease. A scheduler stores and logs what it is given, so
neither lease nor secret passes through one. A ticket is good for one start, until the limit of its queue; until then
the worker extends the lease."""

from collections.abc import Iterable
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import AuthRequired
from osmosis.platform import Platform, tables
from osmosis.platform.auth.tokens import JOB_PREFIX, TICKET_PREFIX, hash_token, new_token
from osmosis.platform.runs import lifecycle
from osmosis.platform.tables import QueueState
from osmosis.records.api.jobs import JobClaim
from osmosis.records.base import utc_now
from osmosis.records.run.status import RunStatus


def issue(job: tables.Job, queue_s: float) -> str:
    ticket = new_token(TICKET_PREFIX)
    job.ticket_hash, job.ticket_taker = hash_token(ticket), None
    job.ticket_until = utc_now() + timedelta(seconds=queue_s)
    return ticket


def is_waiting(job: tables.Job) -> bool:
    return job.state == QueueState.HELD and job.ticket_hash is not None and job.ticket_taker is None


def explain_expiry(work: tables.Work, job: tables.Job) -> str:
    if work.stop_requested_at is not None:
        return "stopped before its job began"
    if job.ticket_until is not None and job.ticket_until < utc_now():
        return f"its job waited until its ticket expired ({job.place or f'with {job.worker}'})"
    return ""


def redeem(session: Session, ticket: str, claim: JobClaim, lease_s: float) -> str:
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


def keep(platform: Platform, waiting: Iterable[tuple[str, str, str]]) -> None:
    """Extend the leases of jobs (id, lease id, place) in a scheduler, and log new places."""
    lease_s, now = platform.settings.lease_s, utc_now()
    for job_id, lease_id, position in waiting:
        with platform.db.write() as session:
            job = session.get(tables.Job, job_id, with_for_update=True)
            if job is None or not is_waiting(job) or job.lease_id != lease_id:
                continue
            job.lease_until = now + timedelta(seconds=lease_s)
            if position and position != job.place:
                job.place = position
                lifecycle.log(session, lifecycle.get_work(session, job), position)


def is_news(job: tables.Job, position: str, lease_s: float) -> bool:
    soon = job.lease_until is None or job.lease_until - utc_now() < timedelta(seconds=lease_s / 2)
    return is_waiting(job) and (soon or (bool(position) and position != job.place))


def find_place(session: Session, run: tables.Run) -> str:
    begun = sa.select(tables.Job).where(tables.Job.run_id == run.id, tables.Job.state != QueueState.WAITING)
    jobs = list(session.scalars(begun.order_by(tables.Job.shard)))
    if not jobs or not all(is_waiting(job) for job in jobs):
        return ""
    return next((job.place for job in jobs if job.place), "")
