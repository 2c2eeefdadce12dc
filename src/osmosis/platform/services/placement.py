"""Which worker can take which run: by its labels, and by what it has free.

A run that no worker can take waits, and says why.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.run import JOB_PROTOCOL
from osmosis.records.run_status import RunStatus
from osmosis.records.worker import ResourceNeeds, Resources

from . import tickets
from .run_lifecycle import MERGE, SERVING

LOST_AFTER = timedelta(seconds=60)
"""A worker that has said nothing for this long is taken to be gone."""


def needs_of(run: tables.Run) -> ResourceNeeds:
    """What a job of this run asks for."""
    advanced = run.config.get("advanced")
    asked = advanced.get("resources") if isinstance(advanced, dict) else None
    return ResourceNeeds.model_validate(asked or {})


def needs_our_disk(run: tables.Run) -> str:
    """Why this run can only be worked on beside the platform; empty when it can be anywhere."""
    if run.kind == "training":
        return ""
    if run.kind in (SERVING, MERGE):
        return "its model is on the platform's disk"
    advanced = run.config.get("advanced")
    own_endpoint = isinstance(advanced, dict) and advanced.get("base_url")
    if run.model_path.startswith(PLATFORM_MODEL) and not own_endpoint:
        return "its model is on the platform's disk"
    return ""


def free_of(session: Session, worker: tables.Worker) -> Resources:
    """What a worker has, less what the jobs asked for that it does now."""
    free = Resources.model_validate(worker.resources)
    query = sa.select(tables.Run).join(tables.Job, tables.Job.run_id == tables.Run.id)
    for run in session.scalars(query.where(tables.Job.worker_id == worker.id, tables.Job.state == QueueState.HELD)):
        free = free.without(needs_of(run))
    return free


def can_take(worker: tables.Worker, free: Resources, run: tables.Run) -> bool:
    """Whether this worker can do a job of this run now."""
    if not worker.embedded and needs_our_disk(run):
        return False
    return not needs_of(run).lacking(free, worker.labels)


def there(session: Session, workspace_id: str) -> list[tables.Worker]:
    """The workers that would be given jobs of this workspace."""
    query = sa.select(tables.Worker).where(
        tables.Worker.last_seen > utc_now() - LOST_AFTER,
        tables.Worker.removed_at.is_(None),
        tables.Worker.draining.is_(False),
        tables.Worker.protocol == JOB_PROTOCOL,
        sa.or_(tables.Worker.workspace_id.is_(None), tables.Worker.workspace_id == workspace_id),
    )
    return list(session.scalars(query.order_by(tables.Worker.name)))


def why_waiting(session: Session, run: tables.Run) -> str:
    """Why no worker can take a run that waits, however long, or where its jobs wait; empty when one works, or can."""
    if run.status == RunStatus.RUNNING.value:
        return tickets.place_of(session, run)
    if run.status != RunStatus.PENDING.value:
        return ""
    workers = there(session, run.workspace_id)
    if not workers:
        return "no worker is there: osmosis worker start, or start the platform without --no-worker"
    able = [worker for worker in workers if run.kind in worker.kinds]
    if (why := needs_our_disk(run)) and not any(worker.embedded for worker in able):
        return f"no worker can take it: {why}, and the platform's own worker is not there"
    if not able:
        named = ", ".join(worker.name for worker in workers[:5])
        return f"no worker can take it: none of {len(workers)} does {run.kind} runs ({named})"
    lacking = [needs_of(run).lacking(Resources.model_validate(worker.resources), worker.labels) for worker in able]
    if lacking and all(lacking):
        has = "; ".join(f"{worker.name} ({_labels(worker)})" for worker in able[:5])
        what = ", ".join(sorted(lacking, key=len)[0])
        return f"no worker with {what}: {len(able)} {'worker' if len(able) == 1 else 'workers'}: {has}"
    return ""


def _labels(worker: tables.Worker) -> str:
    has = Resources.model_validate(worker.resources)
    words = [f"{has.cpus:g} cpus", f"{has.memory_mb} MB", f"{has.gpus} gpus"]
    return ", ".join([*words, *(f"{key}={value}" for key, value in sorted(worker.labels.items()))])
