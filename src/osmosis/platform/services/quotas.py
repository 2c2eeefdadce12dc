"""How much a workspace may have at once: runs, rollouts in flight, datasets, bytes. Set by whoever runs the platform.

Datasets and bytes are asked before an upload. Runs and rollouts in flight are part of the one query that gives out jobs
(`job_queue.waiting`), so a run that is too many waits; only one that could never start is refused.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.tables import QueueState
from osmosis.records.contract.quota import Quota, QuotaUse

from . import run_lifecycle

_MORE = "delete what is not needed, or ask whoever runs the platform for more: osmosis platform quota {} --{} MORE"


def find(session: Session, name: str) -> tables.Workspace:
    """A workspace by name, whoever belongs to it: for the person who runs the platform. NotFound without one."""
    found = session.scalars(sa.select(tables.Workspace).where(tables.Workspace.name == name)).first()
    if found is None:
        raise NotFound(f"no workspace named {name!r}")
    return found


def change(workspace: tables.Workspace, wish: Quota) -> None:
    """Set what is given; 0 takes a limit away."""
    for key, value in wish.model_dump(exclude_none=True).items():
        setattr(workspace, f"max_{key}", value or None)


def used(session: Session, workspace: tables.Workspace) -> QuotaUse:
    """What the workspace has, and the most it may have; None: no limit."""
    held = (
        sa.select(sa.func.count(sa.distinct(tables.Job.run_id)), sa.func.coalesce(sa.func.sum(tables.Job.rollouts), 0))
        .join(tables.Run, tables.Run.id == tables.Job.run_id)
        .where(tables.Run.workspace_id == workspace.id, tables.Run.kind != run_lifecycle.SERVING)
        .where(tables.Job.state == QueueState.HELD)
    )
    runs, rollouts = session.execute(held).one()
    datasets, data = _sums(session, tables.Dataset, workspace.id)
    _, models = _sums(session, tables.BaseModel, workspace.id)
    return QuotaUse(
        used=Quota(runs=runs, rollouts=rollouts, datasets=datasets, bytes=data + models),
        limits=Quota(
            runs=workspace.max_runs,
            rollouts=workspace.max_rollouts,
            datasets=workspace.max_datasets,
            bytes=workspace.max_bytes,
        ),
    )


def _sums(session: Session, table: type[tables.Dataset] | type[tables.BaseModel], workspace_id: str) -> tuple[int, int]:
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.size), 0))
    count, size = session.execute(query.where(table.workspace_id == workspace_id)).one()
    return int(count), int(size)


def check_dataset(session: Session, workspace: tables.Workspace, size: int, *, new: bool) -> None:
    """Conflict when one more dataset, or its bytes, would be too much."""
    most = workspace.max_datasets
    if new and most is not None:
        count, _ = _sums(session, tables.Dataset, workspace.id)
        if count >= most:
            raise _exceeded(workspace, f"it has {count} of {most} datasets", "datasets")
    check_bytes(session, workspace, size)


def check_bytes(session: Session, workspace: tables.Workspace, size: int) -> None:
    """Conflict when this many more bytes would be too much."""
    most = workspace.max_bytes
    if most is None:
        return
    have = used(session, workspace).used.bytes or 0
    if have + size > most:
        what = f"its datasets and models have {have} of {most} bytes, and {size} more would come"
        raise _exceeded(workspace, what, "storage")


def check_rollouts(workspace: tables.Workspace, rollouts: int) -> None:
    """ValidationError for a run that asks for more rollouts in flight than there may ever be."""
    most = workspace.max_rollouts
    if most is not None and rollouts > most:
        raise ValidationError(
            f"this run wants {rollouts} rollouts in flight, and workspace {workspace.name} may have {most}",
            hint=f"lower the batch size to {most} or less; osmosis workspace quota shows the limits",
            code="QUOTA_EXCEEDED",
        )


def why_waiting(session: Session, workspace: tables.Workspace) -> str:
    """What a run that is submitted now waits for, as far as quotas go; empty when for nothing."""
    use = used(session, workspace)
    for key, what in (("runs", "runs"), ("rollouts", "rollouts")):
        have, most = getattr(use.used, key), getattr(use.limits, key)
        if most is not None and have >= most:
            return f"waits: {have} of {most} {what} of this workspace are in flight (osmosis workspace quota)"
    return ""


def _exceeded(workspace: tables.Workspace, what: str, flag: str) -> Conflict:
    return Conflict(
        f"the quota of workspace {workspace.name} is used up: {what}",
        hint=_MORE.format(workspace.name, flag),
        code="QUOTA_EXCEEDED",
    )
