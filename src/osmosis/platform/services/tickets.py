"""Tickets: what a job shows that a scheduler started, to be given its lease.

A scheduler keeps, lists and logs what it is given, so neither lease nor secret passes through one. A ticket is good
once, for one start of one job, until the limit of its queue; until it is changed, the lease is the worker's to extend.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import AuthRequired
from osmosis.platform import Platform, tables
from osmosis.platform.security.tokens import JOB_PREFIX, TICKET_PREFIX, hash_token, new_token
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.contract.job_messages import JobClaim
from osmosis.records.run_status import RunStatus

from . import run_lifecycle


def issue(job: tables.Job, queue_s: float) -> str:
    """A ticket for this start of the job. The lease that it has is nobody's any more: the ticket brings another."""
    ticket = new_token(TICKET_PREFIX)
    job.ticket_hash, job.ticket_taker = hash_token(ticket), None
    job.ticket_until = utc_now() + timedelta(seconds=queue_s)
    return ticket


def waits(job: tables.Job) -> bool:
    """Whether the job has not begun: nobody has changed its ticket yet."""
    return job.state == QueueState.HELD and job.ticket_hash is not None and job.ticket_taker is None


def why_over(run: tables.Run, job: tables.Job) -> str:
    """Why a job that still waits is to be taken out of its queue; empty for one that may wait on."""
    if run.stop_requested_at is not None:
        return "stopped before its job began"
    if job.ticket_until is not None and job.ticket_until < utc_now():
        return f"its job waited until its ticket expired ({job.place or f'with {job.worker}'})"
    return ""


def exchange(session: Session, ticket: str, claim: JobClaim, lease_s: float) -> str:
    """The token of a new lease; empty for a ticket that was used, which the run's log says once. AuthRequired for one
    that is none, or none any more."""
    query = sa.select(tables.Job).where(tables.Job.ticket_hash == hash_token(ticket))
    job = session.scalars(query.with_for_update()).first()
    now, taker = utc_now(), hash_token(claim.taker)
    if job is None or job.run_id != claim.run_id or job.ticket_until is None:
        raise AuthRequired("this ticket is not valid, or no longer: the job was given up or started again")
    run = session.get_one(tables.Run, job.run_id)
    if job.state != QueueState.HELD or run.status != RunStatus.RUNNING.value or run.stop_requested_at is not None:
        raise AuthRequired(f"run {run.name!r} does not wait for this job any more")
    if job.ticket_taker not in (None, taker):
        job.ticket_hash = None
        words = "the ticket of its job was presented a second time, by another process, and refused"
        run_lifecycle.log(session, run.id, words, level="warning")
        return ""
    if job.ticket_taker is None and job.ticket_until < now:
        raise AuthRequired("this ticket has expired: the job waited too long in its queue")
    token = new_token(JOB_PREFIX)
    if job.ticket_taker is None:
        begun = f"job begun by {job.worker}"
        run_lifecycle.log(session, run.id, f"{begun} ({job.place})" if job.place else begun)
    job.ticket_taker, job.place, job.secrets_taker = taker, None, None
    job.lease_hash = hash_token(token)
    job.lease_until = now + timedelta(seconds=lease_s)
    return token


def keep(platform: Platform, waiting: Iterable[tuple[str, str, str]]) -> None:
    """Jobs (id, lease id, place) of which a worker says that they wait: their leases go on, and what is new of their
    places is in the logs."""
    lease_s, now = platform.settings.lease_s, utc_now()
    for job_id, lease_id, place in waiting:
        with platform.db.write() as session:
            job = session.get(tables.Job, job_id, with_for_update=True)
            if job is None or not waits(job) or job.lease_id != lease_id:
                continue
            job.lease_until = now + timedelta(seconds=lease_s)
            if place and place != job.place:
                job.place = place
                run_lifecycle.log(session, job.run_id, place)


def is_news(job: tables.Job, place: str, lease_s: float) -> bool:
    """Whether `keep` would change something that matters for this job."""
    soon = job.lease_until is None or job.lease_until - utc_now() < timedelta(seconds=lease_s / 2)
    return waits(job) and (soon or (bool(place) and place != job.place))


_BEGUN = (
    sa.select(tables.Job)
    .where(tables.Job.run_id == sa.bindparam("run_id"), tables.Job.state != QueueState.WAITING)
    .order_by(tables.Job.shard)
)


def place_of(session: Session, run: tables.Run) -> str:
    """Where the jobs of a run wait; empty once one has begun."""
    jobs = list(session.scalars(_BEGUN, {"run_id": run.id}))
    if not jobs or not all(waits(job) for job in jobs):
        return ""
    return next((job.place for job in jobs if job.place), "")
