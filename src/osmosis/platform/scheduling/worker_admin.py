"""Workers as people manage them: operators those of all workspaces, owners and admins those of theirs."""

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Forbidden, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import leases, workers
from osmosis.platform.scheduling.transitions import Loss
from osmosis.platform.workspaces import audit
from osmosis.records.api.workers import WorkerRow
from osmosis.records.base import utc_now


def list_visible(session: Session, user: tables.User) -> list[tables.Worker]:
    mine = sa.select(tables.Member.workspace_id).where(tables.Member.user_id == user.id)
    visible = sa.or_(tables.Worker.workspace_id.is_(None), tables.Worker.workspace_id.in_(mine))
    query = sa.select(tables.Worker).where(tables.Worker.removed_at.is_(None), visible)
    return list(session.scalars(query.order_by(tables.Worker.name, tables.Worker.created_at)))


def list_rows(session: Session, user: tables.User) -> list[WorkerRow]:
    visible = list_visible(session, user)
    ids = [worker.id for worker in visible]
    by_worker: dict[str, list[str]] = {worker_id: [] for worker_id in ids}
    for job in workers.list_held_jobs(session, ids):
        by_worker[str(job.worker_id)].append(lifecycle.get_work(session, job).name)
    return [
        WorkerRow.from_row(
            worker,
            state=describe_state(worker),
            note=workers.explain_unfit(worker),
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
    jobs = workers.list_held_jobs(session, [worker.id])
    for job in jobs:
        held_job = leases.HeldJob(lifecycle.get_work(session, job), job)
        reason = f"worker {worker.name} was removed"
        leases.release(session, held_job, reason, max_starts=platform.settings.max_starts, loss=Loss.WORKER_REMOVED)
    audit.note(session, actor, "worker.remove", worker.name, workspace=worker.workspace, released=len(jobs))
    return len(jobs)


def describe_state(worker: tables.Worker) -> str:
    if utc_now() - worker.last_seen > timedelta(seconds=workers.LOST_AFTER_S):
        return "lost"
    if workers.explain_unfit(worker):
        return "unfit"
    if worker.draining:
        return "draining"
    return "idle" if worker.slots >= worker.max_jobs else "working"


def describe_sandboxes(platform: Platform, run: tables.Run) -> str | None:
    own = sa.or_(tables.Worker.workspace_id.is_(None), tables.Worker.workspace_id == run.workspace_id)
    with platform.db.read() as session:
        there = session.scalars(sa.select(tables.Worker).where(tables.Worker.removed_at.is_(None), own))
        fit = [worker for worker in there if describe_state(worker) in ("idle", "working") and run.kind in worker.kinds]
    return "; or ".join(sorted({worker.sandbox for worker in fit})) or None
