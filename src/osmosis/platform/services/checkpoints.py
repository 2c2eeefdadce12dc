"""The checkpoints of training runs, as their jobs report them: one row for each step that was saved, by the run's name.

A report that comes again changes nothing but what it says; the row goes when the trainer removes the folder
(`[checkpoints] keep`: the best, the last and the newest stay). Reads no weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.run import CheckpointReport

from . import run_lifecycle

READY = "ready"


def store(session: Session, settings: PlatformSettings, run: tables.Run, reports: Iterable[CheckpointReport]) -> int:
    """Keeps what is new and forgets what was removed; how many were new. ValidationError for a path outside the run's
    folder."""
    known = {row.step: row for row in session.scalars(sa.select(tables.Checkpoint).filter_by(run_id=run.id))}
    new = 0
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
        gone = {_path(settings, run, removed) for removed in report.removed}
        for step in [step for step, one in known.items() if one.path in gone]:
            one = known.pop(step)
            if sa.inspect(one).persistent:
                session.delete(one)
            else:
                session.expunge(one)
    if new:
        for job in run_lifecycle.jobs_of(session, run.id):
            job.starts = min(job.starts, 1)  # a run that gets on is not one whose jobs keep dying
    session.flush()
    return new


def name_of(run: tables.Run, step: int) -> str:
    """What people call it: `multiply-3-step-12`."""
    return f"{run.name}-step-{step}"


def _path(settings: PlatformSettings, run: tables.Run, given: str) -> str:
    """As the database keeps it."""
    folder = settings.models_dir / "runs" / run.id
    path = Path(given)
    if path.resolve().parent != folder.resolve():
        raise ValidationError(f"{given} is not in the folder of this run's checkpoints", field="path")
    return settings.stored(folder / path.name)
