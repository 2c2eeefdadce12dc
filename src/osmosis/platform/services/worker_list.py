"""Workers as people see and direct them: listed, drained, removed.

A worker of all workspaces is shown to everybody and directed by whoever runs the platform; a worker of one workspace,
by its owners and admins.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Forbidden, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.contract.body import moment
from osmosis.records.contract.worker_bodies import WorkerRow
from osmosis.records.worker import Resources

from . import audit, fleet, job_queue
from .audit import Actor


def shown(session: Session, user: tables.User) -> list[tables.Worker]:
    """Those that a person may know of, by name: of all workspaces, and of theirs."""
    mine = sa.select(tables.Member.workspace_id).where(tables.Member.user_id == user.id)
    query = sa.select(tables.Worker).where(
        tables.Worker.removed_at.is_(None),
        sa.or_(tables.Worker.workspace_id.is_(None), tables.Worker.workspace_id.in_(mine)),
    )
    return list(session.scalars(query.order_by(tables.Worker.name, tables.Worker.created_at)))


def rows(session: Session, user: tables.User) -> list[WorkerRow]:
    """What `shown` has, as clients and pages read it."""
    found = shown(session, user)
    works = _doing(session, found)
    names = {workspace.id: workspace.name for workspace in session.scalars(sa.select(tables.Workspace))}
    return [
        WorkerRow(
            id=worker.id,
            name=worker.name,
            state=state_of(worker),
            note=fleet.unfit(worker),
            workspace=names.get(worker.workspace_id or ""),
            embedded=worker.embedded,
            executor=worker.executor,
            version=worker.version,
            labels=worker.labels,
            resources=Resources.model_validate(worker.resources),
            kinds=worker.kinds,
            max_jobs=worker.max_jobs,
            runs=works[worker.id],
            sandbox=worker.sandbox,
            last_seen=moment(worker.last_seen),
            created_at=moment(worker.created_at),
        )
        for worker in found
    ]


def may_direct(session: Session, user: tables.User, worker: tables.Worker) -> bool:
    """Whether a person may drain and remove this worker."""
    member = session.get(tables.Member, (worker.workspace_id, user.id)) if worker.workspace_id else None
    return user.operator or (member is not None and member.role in ("owner", "admin"))


def to_direct(session: Session, user: tables.User, name_or_id: str) -> tables.Worker:
    """The worker of that name, for a person who may direct it. NotFound or Forbidden otherwise."""
    worker = next((one for one in shown(session, user) if name_or_id in (one.name, one.id)), None)
    if worker is None:
        raise NotFound(f"no worker named {name_or_id!r}", hint="osmosis worker list")
    if not may_direct(session, user, worker):
        whose = "an owner or admin of its workspace" if worker.workspace_id else "an operator of the platform"
        raise Forbidden(f"worker {worker.name!r} is directed by {whose}")
    return worker


def drain(session: Session, who: Actor, worker: tables.Worker) -> None:
    """It gets no more work; what it has, it brings to its end."""
    worker.draining = True
    audit.note(session, who, "worker.drain", worker.name, workspace=_workspace(session, worker))


def remove(platform: Platform, session: Session, who: Actor, worker: tables.Worker) -> int:
    """It is not wanted any more; its jobs go elsewhere at once: how many there were. Forbidden for one of our own."""
    if worker.embedded and state_of(worker) != "lost":
        raise Forbidden(
            f"worker {worker.name!r} is the platform's own",
            hint="start the platform without it: osmosis platform start --no-worker",
        )
    worker.removed_at = utc_now()
    jobs = fleet.held_jobs(session, [worker.id])
    for job in jobs:
        held = job_queue.HeldJob(session.get_one(tables.Run, job.run_id), job)
        why = f"worker {worker.name} was removed"
        job_queue.release(session, held, why, max_starts=platform.settings.max_starts, blame="nobody")
    audit.note(session, who, "worker.remove", worker.name, workspace=_workspace(session, worker), released=len(jobs))
    return len(jobs)


def _workspace(session: Session, worker: tables.Worker) -> tables.Workspace | None:
    """Whose it is; None for one of all workspaces."""
    return session.get(tables.Workspace, worker.workspace_id) if worker.workspace_id else None


def state_of(worker: tables.Worker, now: datetime | None = None) -> str:
    """`working` or `idle`, `draining`, `lost`, or `unfit` for one that is given no work."""
    if (now or utc_now()) - worker.last_seen > timedelta(seconds=fleet.LOST_AFTER_S):
        return "lost"
    if fleet.unfit(worker):
        return "unfit"
    if worker.draining:
        return "draining"
    return "idle" if worker.slots >= worker.max_jobs else "working"


def _doing(session: Session, found: Iterable[tables.Worker]) -> dict[str, list[str]]:
    """By worker: the names of the runs it works on."""
    ids = [worker.id for worker in found]
    query = (
        sa.select(tables.Job.worker_id, tables.Run.name)
        .join(tables.Run, tables.Run.id == tables.Job.run_id)
        .where(tables.Job.worker_id.in_(ids), tables.Job.state == QueueState.HELD)
        .order_by(tables.Run.name, tables.Job.shard)
    )
    by_worker: dict[str, list[str]] = {worker_id: [] for worker_id in ids}
    for worker_id, name in session.execute(query):
        by_worker[str(worker_id)].append(name)
    return by_worker
