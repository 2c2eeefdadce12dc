from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from osmosis.platform import tables
from osmosis.platform.auth.tokens import JOB_PREFIX, hash_token, new_token
from osmosis.platform.db import WORK, take_turn
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import leases
from osmosis.platform.scheduling.leases import HeldJob
from osmosis.platform.scheduling.transitions import change_state
from osmosis.platform.tables import QueueState, new_id
from osmosis.records.base import utc_now
from osmosis.records.config.worker import ResourceNeeds, Resources, megabytes
from osmosis.records.run.job import JOB_PROTOCOL
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.rows import count_shards
from osmosis.records.run.status import JobKind, RunStatus

LOOK_AHEAD = (2, 100)
"""Jobs at the head of the queue that a worker looks at, in two tries: each is locked, so most claims lock few."""


@dataclass(frozen=True, slots=True)
class Claimed(HeldJob):
    token: str


def enqueue(session: Session, work: tables.Work, kind: JobKind) -> None:
    session.flush()
    session.execute(sa.delete(tables.Job).filter_by(**work.reference))
    session.info[WORK] = True
    values = {"workspace_id": work.workspace_id, "kind": kind, "work_created_at": work.created_at}
    session.add(tables.Job(**work.reference, **values))


def enqueue_run(session: Session, run: tables.Run) -> list[tables.Job]:
    session.flush()
    session.execute(sa.delete(tables.Job).filter_by(run_id=run.id))
    session.info[WORK] = True
    advanced = run.config.get("advanced")
    divisible = run.kind == "eval" and not explain_own_disk(run)
    shards = advanced.get("shards", 1) if isinstance(advanced, dict) and divisible else 1
    concurrency = run.config.get("evaluation", {}).get("batch_size", 1)
    room = 0
    if shards == "auto":
        room = sum(worker.max_jobs for worker in list_workers(session, run.workspace_id)) or 1
    count = count_shards(shards, rows=run.sampled_rows, concurrency=concurrency, room=room)
    needs = read_needs(run)
    address = advanced.get("base_url") if isinstance(advanced, dict) else None
    jobs = [
        tables.Job(
            run_id=run.id,
            workspace_id=run.workspace_id,
            kind=run.kind,
            priority=run.priority,
            work_created_at=run.created_at,
            shard=shard,
            shards=count,
            rollouts=-(-rollouts_of(run) // count),
            endpoint=f"{run.model_path} {address}" if address else run.model_path,
            cpus=needs.cpus or 0.0,
            memory_mb=megabytes(needs.memory),
            gpus=needs.gpus or 0,
        )
        for shard in range(count)
    ]
    session.add_all(jobs)
    if count > 1:
        lifecycle.log(session, run, f"its rows are split into {count} shards, each with its own job")
    return jobs


def rollouts_of(run: tables.Run) -> int:
    training = run.config.get("training")
    if training is not None:
        return training.get("rollout_batch_size", 1) * training.get("n_samples_per_prompt", 1)
    return run.config.get("evaluation", {}).get("batch_size", 1)


def waiting_jobs(*, deployments: bool = True, others: bool = True) -> sa.Select[tables.Job]:
    """Select the jobs that may start now, in order; deployments have slots of their own."""
    in_flight = usage_by_workspace()
    query = sa.select(tables.Job).join(tables.Workspace, tables.Workspace.id == tables.Job.workspace_id)
    query = query.outerjoin(in_flight, in_flight.c.workspace_id == tables.Workspace.id)
    query = query.where(tables.Job.state == QueueState.WAITING, within_quota(in_flight))
    query = query.where(sa.or_(tables.Job.not_before.is_(None), tables.Job.not_before <= utc_now()))
    # The fewest jobs in flight of a workspace, then the one served longest ago, then priority, then age.
    query = query.order_by(sa.func.coalesce(in_flight.c.jobs, 0), tables.Workspace.served_at.asc().nulls_first())
    query = query.order_by(tables.Job.priority.desc(), tables.Job.work_created_at, tables.Job.run_id, tables.Job.shard)
    if not deployments:
        query = query.where(tables.Job.kind != "serving")
    if not others:
        query = query.where(tables.Job.kind == "serving")
    return query


def waiting_jobs_for(worker: tables.Worker, *, deployments: bool = True, others: bool = True) -> sa.Select[tables.Job]:
    query = waiting_jobs(deployments=deployments, others=others).where(tables.Job.kind.in_(worker.kinds))
    return query if worker.workspace_id is None else query.where(tables.Job.workspace_id == worker.workspace_id)


def within_quota(in_flight: sa.Subquery) -> sa.ColumnElement[bool]:
    """Match jobs whose workspace has quota for one more; with nothing in flight it may always start one."""
    workspace, job = tables.Workspace, tables.Job
    other_job = aliased(tables.Job)
    started = sa.select(other_job.id).where(other_job.run_id == job.run_id, other_job.state == QueueState.HELD).exists()
    runs = sa.func.coalesce(in_flight.c.runs, 0)
    nothing_in_flight = sa.func.coalesce(in_flight.c.jobs, 0) == 0
    limits = [sa.or_(workspace.max_runs.is_(None), runs < workspace.max_runs, started)]
    for limit, needed in (
        (workspace.max_rollouts, job.rollouts),
        (workspace.max_cpus, job.cpus),
        (workspace.max_memory_mb, job.memory_mb),
        (workspace.max_gpus, job.gpus),
    ):
        used = sa.func.coalesce(in_flight.c[needed.key], 0)
        limits.append(sa.or_(limit.is_(None), needed == 0, used + needed <= limit, nothing_in_flight))
    return sa.or_(tables.Job.kind == "serving", sa.and_(*limits))


def usage_by_workspace() -> sa.Subquery:
    job = tables.Job
    counts = [sa.func.count(job.id).label("jobs")]
    counts.append(sa.func.count(sa.distinct(sa.func.coalesce(job.run_id, job.merge_id))).label("runs"))
    sums = [sa.func.sum(column).label(column.key) for column in (job.rollouts, job.cpus, job.memory_mb, job.gpus)]
    query = sa.select(job.workspace_id, *counts, *sums).where(job.state == QueueState.HELD, job.kind != "serving")
    return query.group_by(job.workspace_id).subquery("in_flight")


def claim(
    session: Session, worker: tables.Worker, lease_s: float, among: sa.Select[tables.Job] | None = None
) -> Claimed | None:
    """Claim the first job that this worker can do, one claim after the other, so that quotas hold."""
    take_turn(session, "claims")
    job = _find_first(session, worker, waiting_jobs_for(worker) if among is None else among)
    if job is None:
        return None
    work = lifecycle.get_work(session, job)
    session.refresh(work, with_for_update=True)
    token = new_token(JOB_PREFIX)
    change_state(job, "claim")
    job.lease_id, job.lease_hash = new_id(), hash_token(token)
    job.lease_until = utc_now() + timedelta(seconds=lease_s)
    job.worker_id, job.worker = worker.id, worker.name
    job.starts += 1
    workspace = sa.update(tables.Workspace).where(tables.Workspace.id == job.workspace_id)
    session.execute(workspace.values(served_at=utc_now()))
    if work.status == RunStatus.PENDING.value:
        lifecycle.switch_status(session, work, RunStatus.RUNNING, f"claimed by {worker.name}")
    elif job.starts > 1:
        shard = f"shard {job.shard + 1}: " if job.shards > 1 else ""
        lifecycle.log(session, work, f"{shard}restarting (start {job.starts})", level="warning")
    if job.shards > 1:
        lifecycle.log(session, work, f"shard {job.shard + 1} of {job.shards} is with {worker.name}")
    return Claimed(work, job, token)


def _find_first(session: Session, worker: tables.Worker, query: sa.Select[tables.Job]) -> tables.Job | None:
    free = count_free(session, worker)
    for count in LOOK_AHEAD:
        jobs = session.scalars(query.limit(count).with_for_update(skip_locked=True, of=tables.Job)).all()
        for job in jobs:
            work = lifecycle.get_work(session, job)
            is_reachable = worker.embedded or not explain_own_disk(work)
            if is_reachable and not read_needs(work).lacking(free, worker.labels):
                return job
        if len(jobs) < count:
            break
    return None


LOST_AFTER = timedelta(seconds=60)


def read_needs(work: tables.Work) -> ResourceNeeds:
    advanced = work.config.get("advanced") if isinstance(work, tables.Run) else None
    resources = advanced.get("resources") if isinstance(advanced, dict) else None
    return ResourceNeeds.model_validate(resources or {})


def explain_own_disk(work: tables.Work) -> str:
    if isinstance(work, tables.Run):
        advanced = work.config.get("advanced")
        own_endpoint = isinstance(advanced, dict) and advanced.get("base_url")
        if work.kind == "training" or own_endpoint or not work.model_path.startswith(PLATFORM_MODEL):
            return ""
    return "its model is on the platform's disk"


def count_free(session: Session, worker: tables.Worker) -> Resources:
    free = Resources.model_validate(worker.resources)
    held_jobs = sa.select(tables.Job).where(tables.Job.worker_id == worker.id, tables.Job.state == QueueState.HELD)
    for job in session.scalars(held_jobs):
        free = free.without(read_needs(lifecycle.get_work(session, job)))
    return free


def list_workers(session: Session, workspace_id: str) -> list[tables.Worker]:
    query = sa.select(tables.Worker).where(
        tables.Worker.last_seen > utc_now() - LOST_AFTER,
        tables.Worker.removed_at.is_(None),
        tables.Worker.draining.is_(False),
        tables.Worker.protocol == JOB_PROTOCOL,
        sa.or_(tables.Worker.workspace_id.is_(None), tables.Worker.workspace_id == workspace_id),
    )
    return list(session.scalars(query.order_by(tables.Worker.name)))


def explain_waiting(session: Session, run: tables.Run) -> str:
    if run.status == RunStatus.RUNNING.value:
        return leases.find_scheduler_place(session, run)
    if run.status != RunStatus.PENDING.value:
        return ""
    workers = list_workers(session, run.workspace_id)
    if not workers:
        return "no worker is there: osmosis worker start, or start the platform without --no-worker"
    able = [worker for worker in workers if run.kind in worker.kinds]
    if (reason := explain_own_disk(run)) and not any(worker.embedded for worker in able):
        return f"no worker can take it: {reason}, and the platform's own worker is not there"
    if not able:
        named = ", ".join(worker.name for worker in workers[:5])
        return f"no worker can take it: none of {len(workers)} does {run.kind} runs ({named})"
    lacking = [read_needs(run).lacking(Resources.model_validate(worker.resources), worker.labels) for worker in able]
    if lacking and all(lacking):
        has = "; ".join(f"{worker.name} ({_labels(worker)})" for worker in able[:5])
        missing = ", ".join(sorted(lacking, key=len)[0])
        return f"no worker with {missing}: {len(able)} {'worker' if len(able) == 1 else 'workers'}: {has}"
    return ""


def _labels(worker: tables.Worker) -> str:
    has = Resources.model_validate(worker.resources)
    parts = [f"{has.cpus:g} cpus", f"{has.memory_mb} MB", f"{has.gpus} gpus"]
    return ", ".join([*parts, *(f"{key}={value}" for key, value in sorted(worker.labels.items()))])
