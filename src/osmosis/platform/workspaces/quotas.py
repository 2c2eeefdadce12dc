"""Quotas of a workspace, set by an operator and checked before an upload. A run beyond them waits
(`scheduling.queue.within_quota`); only one that could never start is refused."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.scheduling import queue
from osmosis.records.api.accounts import Quota, QuotaUse

_MORE = "delete what is not needed, or ask an operator for more: osmosis workspace quota {} --set {}=MORE"


def find(session: Session, name: str) -> tables.Workspace:
    workspace = session.scalars(sa.select(tables.Workspace).where(tables.Workspace.name == name)).first()
    if workspace is None:
        raise NotFound(f"no workspace named {name!r}")
    return workspace


def change(workspace: tables.Workspace, wish: Quota) -> None:
    for key, value in wish.model_dump(exclude_none=True).items():
        setattr(workspace, f"max_{key}", value or None)


def build_use(session: Session, workspace: tables.Workspace) -> QuotaUse:
    in_flight = queue.usage_by_workspace()
    query = sa.select(in_flight).where(in_flight.c.workspace_id == workspace.id)
    usage = dict(session.execute(query).mappings().first() or {})
    datasets, data = _sums(session, tables.Dataset, workspace.id)
    _, models = _sums(session, tables.BaseModel, workspace.id)
    return QuotaUse(
        used=Quota(datasets=datasets, bytes=data + models, **{name: usage.get(name, 0) for name in IN_FLIGHT}),
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
    most = workspace.max_datasets
    if new and most is not None:
        count, _ = _sums(session, tables.Dataset, workspace.id)
        if count >= most:
            raise _exceeded(workspace, f"it has {count} of {most} datasets", "datasets")
    check_bytes(session, workspace, size)


def check_bytes(session: Session, workspace: tables.Workspace, size: int) -> None:
    most = workspace.max_bytes
    if most is None:
        return
    have = build_use(session, workspace).used.bytes or 0
    if have + size > most:
        message = f"its datasets and models have {have} of {most} bytes, and {size} more would come"
        raise _exceeded(workspace, message, "storage")


def check_run(workspace: tables.Workspace, run: tables.Run, job: tables.Job) -> None:
    needs = {"rollouts": queue.rollouts_of(run), "cpus": job.cpus, "memory_mb": job.memory_mb, "gpus": job.gpus}
    for name, amount in needs.items():
        most = getattr(workspace, f"max_{name}")
        if most is not None and amount > most:
            key, in_flight = f"{name.removesuffix('_mb')} in [advanced.resources]", ""
            if name == "rollouts":
                key, in_flight = "the batch size", " in flight"
            raise ValidationError(
                f"this run wants {amount:g} {_UNIT[name]}{in_flight}, and workspace {workspace.name} may have {most:g}",
                hint=f"lower {key} to {most:g} or less; osmosis workspace quota shows the limits",
                code="QUOTA_EXCEEDED",
            )


def explain_waiting(session: Session, workspace: tables.Workspace, run: tables.Run) -> str:
    job = session.scalars(sa.select(tables.Job).where(tables.Job.run_id == run.id).limit(1)).first()
    use = build_use(session, workspace)
    for name in IN_FLIGHT:
        have, most = getattr(use.used, name), getattr(use.limits, name)
        amount = 1 if name == "runs" else getattr(job, name, 0)
        if most is not None and amount and have and have + amount > most:
            return f"waits: {have:g} of {most:g} {_UNIT[name]} of this workspace are in use (osmosis workspace quota)"
    return ""


_UNIT = {"runs": "runs", "rollouts": "rollouts", "cpus": "cpus", "memory_mb": "MB of memory", "gpus": "gpus"}
IN_FLIGHT = tuple(_UNIT)


def _exceeded(workspace: tables.Workspace, message: str, flag: str) -> Conflict:
    hint = _MORE.format(workspace.name, flag)
    return Conflict(f"the quota of workspace {workspace.name} is used up: {message}", hint=hint, code="QUOTA_EXCEEDED")
