"""The checkpoints of training runs, as their jobs report them: one row for each step that was saved, by the run's name.

A report that comes again changes nothing but what it says; the row goes when the trainer removes the folder
(`[checkpoints] keep`: the best, the last and the newest stay), unless it is deployed or being merged: then it stays
until that is over and the next one is saved. Reads no weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.run import CheckpointReport, hold_of
from osmosis.records.run_status import RunStatus

from . import run_lifecycle

SENT = re.compile(r"^step-\d{6,12}$")
"""The name of one that a job elsewhere has sent, which knows no folder of ours."""
READY = "ready"
REMOVED = "removed"
"""Among the details of a checkpoint: its run removed it while it was in use."""


def store(session: Session, settings: PlatformSettings, run: tables.Run, reports: Iterable[CheckpointReport]) -> int:
    """Keeps what is new and forgets what was removed; how many were new. ValidationError for a path outside the run's
    folder."""
    known = {row.step: row for row in session.scalars(sa.select(tables.Checkpoint).filter_by(run_id=run.id))}
    used = in_use(session, run.workspace_id)
    for held in known.values():
        if held.name not in used:
            hold_of(settings.located(held.path)).unlink(missing_ok=True)
    new, gone = 0, {one.path for one in known.values() if (one.details or {}).get(REMOVED)}
    for report in reports:
        path = _path(settings, run, report.path)
        row = known.get(report.step)
        if row is None:
            row = known[report.step] = tables.Checkpoint(
                run_id=run.id, step=report.step, name=name_of(run, report.step)
            )
            session.add(row)
            new += 1
        row.status, row.base_model, row.path = READY, run.model_path, path
        row.reward = report.reward if report.reward is not None else row.reward
        row.details = {"kind": report.kind}
        gone |= {_path(settings, run, removed) for removed in report.removed}
        gone.discard(path)
    for step in [step for step, one in known.items() if one.path in gone]:
        one = known[step]
        if one.name in used:
            one.details = {**(one.details or {}), REMOVED: True}
        elif sa.inspect(one).persistent:
            session.delete(known.pop(step))
        else:
            session.expunge(known.pop(step))
    if new:
        for job in run_lifecycle.jobs_of(session, run.id):
            job.starts = min(job.starts, 1)  # a run that gets on is not one whose jobs keep dying
    session.flush()
    return new


def paths(session: Session, run_id: str) -> set[str]:
    """Where those of a run are, as the database keeps it."""
    return set(session.scalars(sa.select(tables.Checkpoint.path).filter_by(run_id=run_id)))


def in_use(session: Session, workspace_id: str) -> set[str]:
    """The names of the models that are deployed or being merged."""
    query = sa.select(tables.Run.model_path).where(
        tables.Run.workspace_id == workspace_id,
        tables.Run.kind.in_((run_lifecycle.SERVING, run_lifecycle.MERGE)),
        tables.Run.status.in_((RunStatus.PENDING.value, RunStatus.RUNNING.value)),
    )
    return {path.removeprefix(PLATFORM_MODEL) for path in session.scalars(query)}


def hold(settings: PlatformSettings, checkpoint: tables.Checkpoint) -> None:
    """It is in use from now on: the trainer of its run leaves it alone, until `store` finds that it no longer is."""
    folder = settings.located(checkpoint.path)
    if folder.parent.is_dir():
        hold_of(folder).touch(mode=0o600)


def name_of(run: tables.Run, step: int) -> str:
    """What people call it: `multiply-3-step-12`."""
    return f"{run.name}-step-{step}"


def _path(settings: PlatformSettings, run: tables.Run, given: str) -> str:
    """As the database keeps it."""
    folder = settings.models_dir / "runs" / run.id
    path = folder / given if SENT.match(given) else Path(given)
    if path.resolve().parent != folder.resolve():
        raise ValidationError(f"{given} is not in the folder of this run's checkpoints", field="path")
    return settings.stored(folder / path.name)
