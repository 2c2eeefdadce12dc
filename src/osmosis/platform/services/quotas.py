"""How much a workspace may have at once: in flight, in datasets, in bytes. Set by whoever runs the platform.

Datasets and bytes are asked before an upload. What is in flight (runs, rollouts, what their jobs asked for) is part of
the one query that gives out jobs (`job_queue.waiting`), so a run that is too many waits, and says so; only one that
could never start is refused.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.records.contract.quota import Quota, QuotaUse

from . import job_queue

_MORE = "delete what is not needed, or ask an operator for more: osmosis platform quota {} --{} MORE"


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
    flying = job_queue.in_flight()
    here = sa.select(flying).where(flying.c.workspace_id == workspace.id)
    found = dict(session.execute(here).mappings().first() or {})
    datasets, data = _sums(session, tables.Dataset, workspace.id)
    _, models = _sums(session, tables.BaseModel, workspace.id)
    return QuotaUse(
        used=Quota(datasets=datasets, bytes=data + models, **{name: found.get(name, 0) for name in IN_FLIGHT}),
        limits=Quota(
            datasets=workspace.max_datasets,
            bytes=workspace.max_bytes,
            **{name: getattr(workspace, f"max_{name}") for name in IN_FLIGHT},
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


def check_run(workspace: tables.Workspace, run: tables.Run, job: tables.Job) -> None:
    """ValidationError for a run of which a job asks for more than its workspace may ever have; `job` is any of them.
    Of rollouts the run counts: what one of its shards leaves, the others get."""
    asked = {"rollouts": job_queue.rollouts_of(run), "cpus": job.cpus, "memory_mb": job.memory_mb, "gpus": job.gpus}
    for name, wanted in asked.items():
        most = getattr(workspace, f"max_{name}")
        if most is not None and wanted > most:
            key = "the batch size" if name == "rollouts" else f"{name.removesuffix('_mb')} in [advanced.resources]"
            raise ValidationError(
                f"this run wants {_amount(name, wanted)}, and workspace {workspace.name} may have {most:g}",
                hint=f"lower {key} to {most:g} or less; osmosis workspace quota shows the limits",
                code="QUOTA_EXCEEDED",
            )


def why_waiting(session: Session, workspace: tables.Workspace, run: tables.Run) -> str:
    """What a run that waits, waits for, as far as quotas go; empty when for nothing."""
    job = session.scalars(sa.select(tables.Job).where(tables.Job.run_id == run.id).limit(1)).first()
    use = used(session, workspace)
    for name in IN_FLIGHT:
        have, most = getattr(use.used, name), getattr(use.limits, name)
        wanted = 1 if name == "runs" else getattr(job, name, 0)
        if most is not None and wanted and have and have + wanted > most:
            return f"waits: {have:g} of {most:g} {_SAID[name]} of this workspace are in use (osmosis workspace quota)"
    return ""


_SAID = {"runs": "runs", "rollouts": "rollouts", "cpus": "cpus", "memory_mb": "MB of memory", "gpus": "gpus"}
IN_FLIGHT = tuple(_SAID)
"""What only a job in flight uses."""


def _amount(name: str, wanted: float) -> str:
    return f"{wanted:g} {_SAID[name]}" + (" in flight" if name == "rollouts" else "")


def _exceeded(workspace: tables.Workspace, what: str, flag: str) -> Conflict:
    return Conflict(
        f"the quota of workspace {workspace.name} is used up: {what}",
        hint=_MORE.format(workspace.name, flag),
        code="QUOTA_EXCEEDED",
    )
