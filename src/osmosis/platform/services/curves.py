"""Curves and checkpoints of training runs: stored point by point, read in the shapes of contract B."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from osmosis.records.run import MetricPoint

from .. import tables
from .results import duration_ms


def store(session: Session, run_id: str, points: Iterable[MetricPoint]) -> int:
    """Keep points that are not there yet; a step of a curve counts once."""
    values = [
        {"run_id": run_id, "key": p.key, "step": p.step, "value": p.value, "timestamp": p.timestamp} for p in points
    ]
    if not values:
        return 0
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert = dialect.insert(tables.MetricPoint).on_conflict_do_nothing(index_elements=["run_id", "key", "step"])
    return len(list(session.execute(insert.returning(tables.MetricPoint.id), values)))


def body(session: Session, run: tables.Run) -> dict[str, Any]:
    """The answer of `training-runs/{x}/metrics`. `training_run_id` is read by older clients only."""
    query = (
        sa.select(tables.MetricPoint)
        .where(tables.MetricPoint.run_id == run.id)
        .order_by(tables.MetricPoint.key, tables.MetricPoint.step)
    )
    series: dict[str, list[tables.MetricPoint]] = {}
    for point in session.scalars(query):
        series.setdefault(point.key, []).append(point)
    steps = [points[-1].step for points in series.values()]
    return {
        "training_run_id": run.id,
        "status": run.status,
        "overview": {
            "duration_ms": duration_ms(run),
            "metric_summaries": [_summary(key, points) for key, points in series.items()],
            "examples_processed_count": 0,
            "latest_step": max(steps, default=None),
            "total_steps": (run.progress or {}).get("total"),
        },
        "metrics": [{"metric_key": key, "title": key, "data_points": _points(ps)} for key, ps in series.items()],
    }


def _points(points: list[tables.MetricPoint]) -> list[dict[str, Any]]:
    return [{"step": p.step, "value": p.value, "timestamp": int(p.timestamp.timestamp() * 1000)} for p in points]


def _summary(key: str, points: list[tables.MetricPoint]) -> dict[str, Any]:
    values = [point.value for point in points]
    return {
        "key": key,
        "title": key,
        "initial": values[0],
        "latest": values[-1],
        "delta": values[-1] - values[0],
        "min": min(values),
        "max": max(values),
    }


def checkpoints(session: Session, run: tables.Run) -> dict[str, Any]:
    """The answer of `training-runs/{x}/checkpoints`."""
    query = sa.select(tables.Checkpoint).where(tables.Checkpoint.run_id == run.id).order_by(tables.Checkpoint.step)
    return {
        "training_run_id": run.id,
        "training_run_name": run.name,
        "checkpoints": [
            {
                "id": row.id,
                "checkpoint_step": row.step,
                "status": row.status,
                "checkpoint_name": row.name,
                "created_at": row.created_at.isoformat(),
            }
            for row in session.scalars(query)
        ],
    }
