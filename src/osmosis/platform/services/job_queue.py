"""The jobs of runs: which waits, who holds which, and until when.

A job is the work of a run, or of one shard of its rows. Its lease says who does it: the token goes to one process, and
writes with another token are dropped (`LeaseLost`). What a run's status becomes is decided in `run_lifecycle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from osmosis.base.backoff import backoff_delay
from osmosis.errors import Conflict, LeaseLost, NotFound
from osmosis.platform import tables
from osmosis.platform.db import WORK
from osmosis.platform.security.tokens import JOB_PREFIX, hash_token, new_token
from osmosis.platform.security.vault import Vault
from osmosis.platform.tables import QueueState, new_id
from osmosis.platform.tables.base import UtcDateTime
from osmosis.records.base import utc_now
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.run import HeartbeatReply, JobResult, Progress, Stage
from osmosis.records.run_status import RunStatus
from osmosis.records.shard import shards_for
from osmosis.records.worker import megabytes

from . import endpoints, pace, placement, run_lifecycle, secrets, shards

ADDED_UP_EVERY = timedelta(seconds=1)
"""How often the figures of shards are put together while they go on."""

LOOKED_AT = (2, 100)
"""Jobs at the head of the queue among which a worker finds one that it can do: so many, and if it can do none of these,
so many. Each is locked, so most claims look at few."""

LONGEST_PAUSE_S = 300.0
_NOW = sa.bindparam("now", callable_=utc_now, type_=UtcDateTime())
"""When a statement is run, not when it is put together."""

CLAIM_LOCK = 0x6F736D71
LOCAL = "local"
"""The executor whose jobs are given their lease; those of all others get a ticket."""


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job and its run, as the holder of the lease sees them."""

    run: tables.Run
    job: tables.Job


@dataclass(frozen=True, slots=True)
class Claimed(HeldJob):
    """A job that was just taken."""

    token: str
    """Of its lease; nobody can look it up later."""


def put(session: Session, run: tables.Run) -> list[tables.Job]:
    """Let a run wait for its turn, with new jobs: whoever worked on it before has lost it."""
    session.flush()
    session.execute(sa.delete(tables.Job).where(tables.Job.run_id == run.id))
    advanced = run.config.get("advanced")
    divisible = run.kind == "eval" and not placement.needs_our_disk(run)
    wanted = advanced.get("shards", 1) if isinstance(advanced, dict) and divisible else 1
    concurrency = run.config.get("evaluation", {}).get("batch_size", 1)
    room = _room(session, run) if wanted == "auto" else 0
    count = shards_for(wanted, rows=run.sampled_rows, concurrency=concurrency, room=room)
    session.info[WORK] = True
    each = -(-rollouts_of(run) // count)
    asks, endpoint = placement.needs_of(run), endpoints.of_run(run)
    jobs = [
        tables.Job(
            run_id=run.id,
            shard=number,
            shards=count,
            rollouts=each,
            endpoint=endpoint,
            cpus=asks.cpus or 0.0,
            memory_mb=megabytes(asks.memory),
            gpus=asks.gpus or 0,
        )
        for number in range(count)
    ]
    session.add_all(jobs)
    if count > 1:
        run_lifecycle.log(session, run.id, f"its rows are split into {count} shards, each with its own job")
    return jobs


def _room(session: Session, run: tables.Run) -> int:
    """How many jobs the workers that are there would do at once for this run."""
    return sum(worker.max_jobs for worker in placement.there(session, run.workspace_id)) or 1


def rollouts_of(run: tables.Run) -> int:
    """How many rollouts a run may have in flight, by its config."""
    training = run.config.get("training")
    if training is not None:
        return training.get("rollout_batch_size", 1) * training.get("n_samples_per_prompt", 1)
    return run.config.get("evaluation", {}).get("batch_size", 1)


@cache  # each idle round of each worker asks; to put the statement together costs more than to run it
def waiting(*, deployments: bool = True, others: bool = True) -> sa.Select[tables.Job]:
    """Jobs for which there is no process, the next one first.

    A workspace beyond a quota of what is in flight waits, unless nothing of it is in flight or the run is in flight
    already, and deployments do not count; a job that asks for no GPU waits for none. Among workspaces the one with the
    fewest jobs comes first, then the one that was served longest ago; within one the run of the highest priority, then
    the oldest. Deployments, or all the others, can be left out: they have slots of their own.
    """
    query = sa.select(tables.Job).join(tables.Run, tables.Run.id == tables.Job.run_id)
    query = query.join(tables.Workspace, tables.Workspace.id == tables.Run.workspace_id)
    query = query.where(
        tables.Job.state == QueueState.WAITING,
        tables.Run.status.in_((RunStatus.PENDING.value, RunStatus.RUNNING.value)),
        sa.or_(tables.Job.not_before.is_(None), tables.Job.not_before <= _NOW),
    )
    if not deployments:
        query = query.where(tables.Run.kind != run_lifecycle.SERVING)
    if not others:
        query = query.where(tables.Run.kind == run_lifecycle.SERVING)
    flying = in_flight()
    query = query.outerjoin(flying, flying.c.workspace_id == tables.Workspace.id)
    jobs, space = sa.func.coalesce(flying.c.jobs, 0), tables.Workspace
    held = aliased(tables.Job)
    mine = sa.select(held.id).where(held.run_id == tables.Job.run_id, held.state == QueueState.HELD)
    within = [
        sa.or_(space.max_runs.is_(None), sa.func.coalesce(flying.c.runs, 0) < space.max_runs, mine.exists()),
        *(
            sa.or_(most.is_(None), asked == 0, sa.func.coalesce(flying.c[asked.key], 0) + asked <= most, jobs == 0)
            for most, asked in (
                (space.max_rollouts, tables.Job.rollouts),
                (space.max_cpus, tables.Job.cpus),
                (space.max_memory_mb, tables.Job.memory_mb),
                (space.max_gpus, tables.Job.gpus),
            )
        ),
    ]
    query = query.where(sa.or_(tables.Run.kind == run_lifecycle.SERVING, sa.and_(*within)))
    longest = space.served_at.asc().nulls_first()
    return query.order_by(
        jobs, longest, tables.Run.priority.desc(), tables.Run.created_at, tables.Run.id, tables.Job.shard
    )


def in_flight() -> sa.Subquery:
    """By workspace: how many jobs and runs are in flight, and what those jobs have in use together."""
    run, job = tables.Run, tables.Job
    return (
        sa.select(
            run.workspace_id,
            sa.func.count(job.id).label("jobs"),
            sa.func.count(sa.distinct(job.run_id)).label("runs"),
            sa.func.sum(job.rollouts).label("rollouts"),
            sa.func.sum(job.cpus).label("cpus"),
            sa.func.sum(job.memory_mb).label("memory_mb"),
            sa.func.sum(job.gpus).label("gpus"),
        )
        .join(run, run.id == job.run_id)
        .where(job.state == QueueState.HELD, run.kind != run_lifecycle.SERVING)
        .group_by(run.workspace_id)
        .subquery("flying")
    )


def claim(
    session: Session, worker: tables.Worker, lease_s: float, among: sa.Select[tables.Job] | None = None
) -> Claimed | None:
    """Take the first job that waits and that this worker can do, with a new lease token; None when there is none.
    `among` is a form of `waiting_for`.

    One transaction on a locked row, so no two workers get the same; claims come one after the other, so what is in
    flight is counted right.
    """
    if session.get_bind().dialect.name == "postgresql":  # writers of SQLite are alone anyway
        session.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": CLAIM_LOCK})
    job = _first_for(session, worker, waiting_for(worker) if among is None else among)
    if job is None:
        return None
    run = session.get_one(tables.Run, job.run_id, with_for_update=True)
    token = new_token(JOB_PREFIX)
    job.state = QueueState.HELD
    job.lease_id, job.lease_hash = new_id(), hash_token(token)
    job.lease_until = utc_now() + timedelta(seconds=lease_s)
    job.worker_id, job.worker, job.handle, job.secrets_taker = worker.id, worker.name, None, None
    job.ticket_hash, job.ticket_until, job.ticket_taker, job.place = None, None, None, None
    job.starts += 1
    now = sa.update(tables.Workspace).where(tables.Workspace.id == run.workspace_id).values(served_at=utc_now())
    session.execute(now)
    if run.status == RunStatus.PENDING.value:
        run_lifecycle.switch_status(session, run, RunStatus.RUNNING, f"claimed by {worker.name}")
    elif job.starts > 1:
        which = f"shard {job.shard + 1}: " if job.shards > 1 else ""
        run_lifecycle.log(session, run.id, f"{which}restarting (start {job.starts})", level="warning")
    if job.shards > 1:
        run_lifecycle.log(session, run.id, f"shard {job.shard + 1} of {job.shards} is with {worker.name}")
    return Claimed(run, job, token)


def _first_for(session: Session, worker: tables.Worker, query: sa.Select[tables.Job]) -> tables.Job | None:
    """The first of these jobs that this worker has room for, locked."""
    free = placement.free_of(session, worker)
    for most in LOOKED_AT:
        found = session.scalars(query.limit(most).with_for_update(skip_locked=True, of=tables.Job)).all()
        for job in found:
            if placement.can_take(worker, free, session.get_one(tables.Run, job.run_id)):
                return job
        if len(found) < most:
            break
    return None


def waiting_for(worker: tables.Worker, *, deployments: bool = True, others: bool = True) -> sa.Select[tables.Job]:
    """Of those that wait, the jobs that this worker may have."""
    return _waiting_for(tuple(worker.kinds), worker.workspace_id, deployments, others)


@lru_cache(maxsize=256)
def _waiting_for(
    kinds: tuple[str, ...], workspace_id: str | None, deployments: bool, others: bool
) -> sa.Select[tables.Job]:
    query = waiting(deployments=deployments, others=others).where(tables.Run.kind.in_(kinds))
    return query if workspace_id is None else query.where(tables.Run.workspace_id == workspace_id)


def of_lease(session: Session, run_id: str, token: str) -> HeldJob:
    """The job this token speaks for. LeaseLost when another process does it, or the run is over."""
    query = sa.select(tables.Job).where(tables.Job.run_id == run_id, tables.Job.lease_hash == hash_token(token))
    job = session.scalars(query.with_for_update()).first()
    run = session.get(tables.Run, run_id)
    if run is None:
        raise NotFound(f"no run {run_id}")
    if job is None:
        raise LeaseLost(f"another job has taken over run {run.name!r}")
    if job.state != QueueState.HELD or run.status != RunStatus.RUNNING.value:
        raise LeaseLost(f"run {run.name!r} is {run.status}")
    return HeldJob(run, job)


def known_lease(session: Session, run_id: str, token: str) -> tables.Job:
    """The job this token speaks for, or spoke for at its end: it may look at what is stored. LeaseLost otherwise."""
    query = sa.select(tables.Job).where(tables.Job.run_id == run_id, tables.Job.lease_hash == hash_token(token))
    job = session.scalars(query).first()
    if job is None or job.state == QueueState.WAITING:
        raise LeaseLost("another job has taken over this run")
    return job


def of_run(session: Session, run_id: str) -> tables.Job | None:
    """A job of this run that somebody does now."""
    query = sa.select(tables.Job).where(tables.Job.run_id == run_id, tables.Job.state == QueueState.HELD)
    return session.scalars(query.limit(1)).first()


def run_of_lease(session: Session, token: str) -> tables.Run | None:
    """The run that this token works on now; None when it is nobody's any more."""
    query = sa.select(tables.Run).join(tables.Job, tables.Job.run_id == tables.Run.id)
    held = tables.Job.lease_hash == hash_token(token), tables.Job.state == QueueState.HELD
    return session.scalars(query.where(*held, tables.Run.status == RunStatus.RUNNING.value)).first()


def over(session: Session, run_id: str, token: str) -> str | None:
    """How the job ended that this token did to its end; None for one that goes on, or is another's."""
    query = sa.select(tables.Job).where(tables.Job.run_id == run_id, tables.Job.lease_hash == hash_token(token))
    job = session.scalars(query).first()
    return job.status if job is not None and job.state == QueueState.OVER else None


def held(session: Session, job_id: str, lease_hash: str) -> HeldJob | None:
    """The job as long as this lease of it holds; None afterwards."""
    job = session.get(tables.Job, job_id, with_for_update=True)
    if job is None or job.lease_hash != lease_hash or job.state != QueueState.HELD:
        return None
    return HeldJob(session.get_one(tables.Run, job.run_id), job)


def extend(job: tables.Job, lease_s: float, now: datetime | None = None) -> None:
    """Never shorter than it was: whoever speaks seldom was given more."""
    until = (now or utc_now()) + timedelta(seconds=lease_s)
    job.lease_until = max(until, job.lease_until or until)


def take_secrets(session: Session, vault: Vault, held: HeldJob, taker: str) -> dict[str, str]:
    """NAME -> value, for whoever asks first under this lease; the same asker may ask again, because an answer can be
    lost. Conflict for another one."""
    digest = hash_token(taker)
    if held.job.secrets_taker not in (None, digest):
        raise Conflict("the secrets of this job were handed over already")
    held.job.secrets_taker = digest
    values = secrets.values_for_run(session, vault, held.run)
    secrets.note_use(session, held.run)
    return values


def heartbeat(session: Session, held: HeldJob, progress: Progress, lease_s: float) -> HeartbeatReply:
    """Note how far the job is; the answer says whether it should stop, and what it shares with others."""
    run, job = held.run, held.job
    every_s = pace.every_s(session)
    extend(job, max(lease_s, pace.LEASE * every_s))
    if progress.pause_s:
        endpoints.refused(job, progress.pause_s)
    reply = HeartbeatReply(stop=run.stop_requested_at is not None)
    if pause := endpoints.pause_of(session, run, job):
        reply.pause_s = pause
    if every_s:
        reply.every_s = every_s
    if job.shards > 1:
        return reply.model_copy(update=_shard_heartbeat(session, run, job, progress))
    run.progress = {"stage": progress.stage.value, "completed": progress.completed, "total": progress.total}
    if progress.sandbox:
        run.progress["sandbox"] = progress.sandbox
    if progress.stage is Stage.SERVING and run.kind == run_lifecycle.SERVING:
        run.progress["endpoint"] = progress.endpoint
        held.job.starts = min(held.job.starts, 1)  # a deployment that serves is not one whose jobs keep dying
    if progress.report is not None:
        run.report = progress.report.to_dict()
    run.updated_at = utc_now()
    return reply


def _shard_heartbeat(session: Session, run: tables.Run, job: tables.Job, progress: Progress) -> dict[str, object]:
    """What a reply has for one of several shards: its part of the concurrency, and what the others have spent."""
    job.progress = tables.StoredProgress(
        stage=progress.stage.value, completed=progress.completed, total=progress.total, sandbox=progress.sandbox
    )
    if progress.report is not None:
        job.report = progress.report.to_dict()
    jobs, now = run_lifecycle.jobs_of(session, run.id), utc_now()
    if now - run.updated_at > ADDED_UP_EVERY or progress.completed == progress.total:
        shards.add_up(run, jobs)
        run.updated_at = now
    return {
        "concurrency": shards.concurrency_now(run, job, jobs),
        "elsewhere": shards.spent([other for other in jobs if other is not job]),
    }


Blame = Literal["job", "executor", "nobody"]
"""For what a job ended without a result: itself, which costs a start; what it ran on (a scheduler, a machine that is
lost), which costs none, but not for ever; or somebody who ended its worker."""


def release(session: Session, held: HeldJob, reason: str, *, max_starts: int, blame: Blame = "job") -> None:
    """The job is gone without a word: another does it, or the run has failed for good."""
    run, job = held.run, held.job
    job.state, job.lease_hash, job.lease_until, job.handle = QueueState.WAITING, None, None, None
    job.lease_id, job.ticket_hash, job.place = None, None, None
    if run.progress and "endpoint" in run.progress:
        run.progress = {**run.progress, "endpoint": ""}
    if blame != "job":
        job.starts = max(0, job.starts - 1)
    job.lost += blame == "executor"
    if run.stop_requested_at is not None and job.shards > 1:
        job.state, job.status = QueueState.OVER, RunStatus.STOPPED.value
    elif run.stop_requested_at is not None:
        run_lifecycle.end(session, run, JobResult(status=RunStatus.STOPPED), "stopped by request")
    elif given_up := _given_up(job, max_starts):
        failure = Failure(
            phase=Phase.SETUP,
            category=Category.SERVER_DIED,
            message=f"{given_up}; last time: {reason}",
            fix="read the run's log, then retry the run",
        )
        run_lifecycle.end(session, run, JobResult(status=RunStatus.FAILED, failure=failure), reason)
    else:
        run_lifecycle.log(session, run.id, reason, level="warning")


def _given_up(job: tables.Job, max_starts: int) -> str:
    """Why it is not started again; empty when it is."""
    if job.starts >= max_starts:
        return f"the job ended {job.starts} times without a result"
    if job.lost >= max_starts:
        return f"its machine or executor failed {job.lost} times in a row before anything was stored"
    return ""


def pause(job: tables.Job, base_s: float) -> float:
    """Keeps a job whose start was refused from the next one for a while: a scheduler that is away for seconds would
    refuse every try otherwise. The seconds; 0 where it is not tried again."""
    if job.state != QueueState.WAITING or not base_s:
        return 0.0
    seconds = backoff_delay(max(1, job.lost), base_s=base_s, max_s=LONGEST_PAUSE_S)
    job.not_before = utc_now() + timedelta(seconds=seconds)
    return seconds


def stored(job: tables.Job, count: int) -> None:
    """So many rollouts of it were new: what it runs on is not to blame for what comes."""
    if count and job.lost:
        job.lost = 0


def _interrupted(session: Session, job: tables.Job) -> Blame:
    """Who ended a job that says that it was interrupted: a scheduler, where no worker ends its jobs."""
    worker = session.get(tables.Worker, job.worker_id) if job.worker_id else None
    return "executor" if worker is not None and worker.executor != LOCAL else "nobody"


def finish(session: Session, held: HeldJob, result: JobResult, *, max_starts: int) -> None:
    """The job's last message. `stopped` without a request or a failure (a budget or a time limit) means that it was
    interrupted: the run resumes later."""
    run = held.run
    if result.status is RunStatus.STOPPED and run.stop_requested_at is None and result.failure is None:
        if result.report is not None and held.job.shards == 1:
            run.report = result.report.to_dict()
        blame = _interrupted(session, held.job)
        release(session, held, "the job was interrupted", max_starts=max_starts, blame=blame)
        return
    job = held.job
    job.status = result.status.value
    if job.shards == 1 or result.status is RunStatus.FAILED:
        figures = result if job.shards == 1 else result.model_copy(update={"report": None})
        run_lifecycle.end(session, run, figures, "")
        return
    job.state, job.handle, job.lease_until = QueueState.OVER, None, None
    if result.report is not None:
        job.report = result.report.to_dict()
        done = tables.StoredProgress(stage=Stage.REPORT.value, total=result.report.total)
        job.progress = {**(job.progress or {}), **done, "completed": result.report.completed}
    jobs = run_lifecycle.jobs_of(session, run.id)
    if result.failure is not None:
        why = f"shard {job.shard + 1} of {job.shards}: {result.failure.message}"
        run_lifecycle.log(session, run.id, why, level="warning")
        # A budget is that of the run, a time limit that of the job: the others have theirs.
        if result.failure.category is not Category.TIMEOUT:
            run_lifecycle.leave_waiting(jobs)
    shards.add_up(run, jobs)
