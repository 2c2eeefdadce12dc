"""Which worker can take which run, by labels and free resources, and why a run waits."""

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import tickets
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.config.worker import ResourceNeeds, Resources
from osmosis.records.run.job import JOB_PROTOCOL
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.status import RunStatus

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
        return tickets.find_place(session, run)
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
