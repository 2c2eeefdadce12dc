"""Checkpoints that training jobs report; a deployed or merging one stays until that is over."""

import re
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.models.service import find_start
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import leases
from osmosis.platform.settings import PlatformSettings
from osmosis.records.run.job import CheckpointReport, hold_file

SENT = re.compile(r"^step-\d{6,12}\Z")
READY = "ready"
REMOVED = "removed"
"""Key in a checkpoint's details: its run removed it while it was in use."""


def store(session: Session, settings: PlatformSettings, run: tables.Run, reports: Iterable[CheckpointReport]) -> int:
    """Store new checkpoints, forget removed ones; return how many were new. Raise ValidationError."""
    rows = {row.step: row for row in session.scalars(sa.select(tables.Checkpoint).filter_by(run_id=run.id))}
    start = find_start(session, run.workspace_id, run.model_path)
    base_model = start.base_model if start else run.model_path
    used = set[str]()
    users = (tables.Deployment, tables.Deployment.name), (tables.Merge, tables.Merge.adapter)
    for table, column in (*users, (tables.Run, tables.Run.model_path)):
        live = sa.select(column).where(table.workspace_id == run.workspace_id, lifecycle.is_live(table))
        used.update(session.scalars(live))
    for checkpoint in rows.values():
        if checkpoint.name not in used:
            hold_file(settings.located(checkpoint.path)).unlink(missing_ok=True)
    new, removed_paths = (
        0,
        {removed_row.path for removed_row in rows.values() if (removed_row.details or {}).get(REMOVED)},
    )
    for report in reports:
        path = _path(settings, run, report.path)
        row = rows.get(report.step)
        if row is None:
            row = rows[report.step] = tables.Checkpoint(run_id=run.id, step=report.step, name=name_of(run, report.step))
            session.add(row)
            new += 1
        row.status, row.base_model, row.path = READY, base_model, path
        row.reward = report.reward if report.reward is not None else row.reward
        row.details = {"kind": report.kind}
        removed_paths |= {_path(settings, run, removed) for removed in report.removed}
        removed_paths.discard(path)
    for step in [step for step, removed_row in rows.items() if removed_row.path in removed_paths]:
        removed_row = rows[step]
        if removed_row.name in used:
            removed_row.details = {**(removed_row.details or {}), REMOVED: True}
        elif sa.inspect(removed_row).persistent:
            session.delete(rows.pop(step))
        else:
            session.expunge(rows.pop(step))
    if new:
        for job in lifecycle.list_jobs(session, run):
            leases.note_progress(job)
    session.flush()
    return new


def list_paths(session: Session, run_id: str) -> set[str]:
    return set(session.scalars(sa.select(tables.Checkpoint.path).filter_by(run_id=run_id)))


def hold(settings: PlatformSettings, checkpoint: tables.Checkpoint) -> None:
    """Mark a checkpoint as in use: its trainer keeps it until `store` finds it unused."""
    folder = settings.located(checkpoint.path)
    if folder.parent.is_dir():
        hold_file(folder).touch(mode=0o600)


def name_of(run: tables.Run, step: int) -> str:
    return f"{run.name}-step-{step}"


def _path(settings: PlatformSettings, run: tables.Run, name: str) -> str:
    folder = settings.models_dir / "runs" / run.id
    path = folder / name if SENT.match(name) else Path(name)
    if path.resolve().parent != folder.resolve():
        raise ValidationError(f"{name} is not in the folder of this run's checkpoints", field="path")
    return settings.stored(folder / path.name)
