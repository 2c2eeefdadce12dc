"""What training runs have of their own: whether this machine can train, their curves, their checkpoints.

Never imports the trainer's libraries: they live in an environment that a job builds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from osmosis.base.machine import TRAINER_PYTHON, find_python
from osmosis.errors import PlatformError
from osmosis.metrics.training_curves import curve_info, in_order
from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.platform.settings import PlatformSettings
from osmosis.records.contract.body import moment
from osmosis.records.contract.training_bodies import (
    CheckpointList,
    CheckpointRow,
    Curve,
    CurvePoint,
    CurveSummary,
    TrainingMetrics,
    TrainingOverview,
)
from osmosis.records.run import MetricPoint

from . import run_lifecycle
from .run_results import duration_ms


class NoTrainer(PlatformError):
    """Training was asked of a platform whose machine cannot train."""

    code = "NO_TRAINER"
    http_status = 501


def check_machine(settings: PlatformSettings) -> None:
    """NoTrainer when the jobs of this platform run on its own machine and that cannot train."""
    if not settings.worker or find_python(TRAINER_PYTHON, settings.environ) is not None:
        return
    needed = ".".join(map(str, TRAINER_PYTHON))
    raise NoTrainer(
        f"this platform cannot train: its machine has no Python {needed} or newer, which the trainer's libraries need",
        hint="install a newer Python beside the present one (nothing else has to change), for example python3.12",
    )


def store(session: Session, run_id: str, points: Iterable[MetricPoint]) -> int:
    """Keep points; a step of a curve has one, and what is said last counts: a step that is trained again after a job
    was lost is the one that the model has learned from."""
    once = {(p.key, p.step): p for p in points}.values()  # one statement can set a row only once
    values = [
        {"run_id": run_id, "key": p.key, "step": p.step, "value": p.value, "timestamp": p.timestamp} for p in once
    ]
    if not values:
        return 0
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert = dialect.insert(tables.MetricPoint)
    said = {"value": insert.excluded.value, "timestamp": insert.excluded.timestamp}
    upsert = insert.on_conflict_do_update(
        index_elements=["run_id", "key", "step"], set_=said, where=tables.MetricPoint.value != insert.excluded.value
    )
    return len(list(session.execute(upsert.returning(tables.MetricPoint.id), values)))


def rewind(session: Session, run: tables.Run, step: int) -> int:
    """Forget rollouts and points after this step, which are about to be made again: the tokens of what another machine
    rolled out went with it, so its rollouts teach nothing. How many rollouts there were."""
    later = tables.Rollout.run_id == run.id, tables.Rollout.step > step
    forgotten = count_of(session, sa.select(tables.Rollout).where(*later))
    session.execute(sa.delete(tables.Rollout).where(*later).execution_options(synchronize_session=False))
    points = sa.delete(tables.MetricPoint).where(tables.MetricPoint.run_id == run.id, tables.MetricPoint.step > step)
    session.execute(points.execution_options(synchronize_session=False))
    if forgotten:
        where = f"from step {step}" if step >= 0 else "from its beginning"
        reason = f"it goes on {where} on another machine: {forgotten} later rollouts are done again"
        session.add(
            tables.RunEvent(run_id=run.id, before=run.status, status=run.status, reason=reason)
        )  # see run_tally
        run_lifecycle.log(session, run.id, reason)
    return forgotten


def body(session: Session, run: tables.Run) -> TrainingMetrics:
    """The answer of `training-runs/{x}/metrics`."""
    query = (
        sa.select(tables.MetricPoint)
        .where(tables.MetricPoint.run_id == run.id)
        .order_by(tables.MetricPoint.key, tables.MetricPoint.step)
    )
    series: dict[str, list[tables.MetricPoint]] = {}
    for point in session.scalars(query):
        series.setdefault(point.key, []).append(point)
    steps = [points[-1].step for points in series.values()]
    overview = TrainingOverview(
        duration_ms=duration_ms(run),
        metric_summaries=[_summary(key, series[key]) for key in in_order(series)],
        examples_processed_count=rollouts_done(session, run.id),
        latest_step=max(steps, default=None),
        total_steps=(run.progress or tables.StoredProgress()).get("total"),
    )
    curves = [
        Curve(metric_key=key, title=curve_info(key).title, data_points=_points(series[key])) for key in in_order(series)
    ]
    return TrainingMetrics(training_run_id=run.id, status=run.status, overview=overview, metrics=curves)


def _points(points: list[tables.MetricPoint]) -> list[CurvePoint]:
    return [CurvePoint(step=p.step, value=p.value, timestamp=int(p.timestamp.timestamp() * 1000)) for p in points]


def _summary(key: str, points: list[tables.MetricPoint]) -> CurveSummary:
    values = [point.value for point in points]
    return CurveSummary(
        key=key,
        title=curve_info(key).title,
        initial=values[0],
        latest=values[-1],
        delta=values[-1] - values[0],
        min=min(values),
        max=max(values),
    )


def latest_rewards(session: Session, run_ids: Sequence[str]) -> dict[str, float]:
    """The last training reward of each run that has one."""
    of_runs = tables.MetricPoint.run_id.in_(run_ids), tables.MetricPoint.key == "rollout/raw_reward"
    query = sa.select(tables.MetricPoint.run_id, tables.MetricPoint.value).where(*of_runs)
    return {run_id: value for run_id, value in session.execute(query.order_by(tables.MetricPoint.step))}


def rollouts_done(session: Session, run_id: str) -> int:
    """Rollouts that a run has stored."""
    query = sa.select(tables.Rollout).where(tables.Rollout.run_id == run_id)
    return count_of(session, query)


def checkpoints(session: Session, run: tables.Run) -> CheckpointList:
    """The answer of `training-runs/{x}/checkpoints`."""
    query = sa.select(tables.Checkpoint).where(tables.Checkpoint.run_id == run.id).order_by(tables.Checkpoint.step)
    found = [
        CheckpointRow(
            id=row.id,
            checkpoint_step=row.step,
            status=row.status,
            checkpoint_name=row.name,
            created_at=moment(row.created_at),
        )
        for row in session.scalars(query)
    ]
    return CheckpointList(training_run_id=run.id, training_run_name=run.name, checkpoints=found)
