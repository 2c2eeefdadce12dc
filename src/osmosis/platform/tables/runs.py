"""Runs, their events and their logs. The row of a run is also its place in the queue: the lease says who works."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, new_id


class Run(Base):
    __tablename__ = "runs"
    __table_args__ = (
        sa.UniqueConstraint("workspace_id", "kind", "name"),
        sa.Index("ix_runs_queue", "status", "lease_until", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    repository_id: Mapped[str | None] = mapped_column(sa.ForeignKey("repositories.id", ondelete="SET NULL"))
    dataset_id: Mapped[str | None] = mapped_column(sa.ForeignKey("datasets.id", ondelete="SET NULL"), index=True)
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    kind: Mapped[str]
    """`eval` or `training`."""
    name: Mapped[str]
    status: Mapped[str]
    """records.run.RunStatus; changed only by `services.runs.switch_status`."""
    config: Mapped[dict[str, Any]]
    """The checked config, in the shape of the TOML file."""
    rollout: Mapped[str]
    model_path: Mapped[str]
    dataset: Mapped[str]
    """Name at the time of submit."""
    dataset_path: Mapped[str]
    """The file it runs on, below the data folder; empty for an imported run without one."""
    dataset_sha256: Mapped[str | None]
    dataset_rows: Mapped[int | None]
    branch: Mapped[str | None]
    commit_sha: Mapped[str]
    rows: Mapped[list[Any]] = mapped_column(deferred=True)
    """The selected row indices; loaded only when asked for."""
    sampled_rows: Mapped[int] = mapped_column(default=0)
    """How many they are."""
    sample_seed: Mapped[int | None] = mapped_column(sa.BigInteger)
    """Seed of the random 10 %; None when `limit` was given."""
    secret_scopes: Mapped[dict[str, Any]]
    """NAME -> `workspace`, `user`, `user_override` or `run`."""
    progress: Mapped[dict[str, Any] | None]
    """records.run.Progress without its report."""
    report: Mapped[dict[str, Any] | None]
    """records.report.Report, running or final."""
    failure: Mapped[dict[str, Any] | None]
    """records.rollout.Failure."""
    retries: Mapped[int] = mapped_column(default=0)
    """How often a person asked for the failed rollouts again; each has its own work folder."""
    imported: Mapped[dict[str, Any] | None]
    """For a run that was made elsewhere: `local_run_id`, `name` there, `provenance`. None for runs of this platform."""

    lease_hash: Mapped[str | None]
    """SHA-256 of the token of the job that speaks for this run."""
    lease_until: Mapped[datetime | None]
    worker: Mapped[str | None]
    """Name of the worker that started the job."""
    starts: Mapped[int] = mapped_column(default=0)
    """Jobs started for this run since it was submitted or retried."""
    handle: Mapped[dict[str, Any] | None]
    """What the executor needs to find its job again (local: pid and start time)."""
    stop_requested_at: Mapped[datetime | None]

    created_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]


class RunEvent(Base):
    """A change of status, written with it."""

    __tablename__ = "run_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    before: Mapped[str | None]
    status: Mapped[str]
    reason: Mapped[str] = mapped_column(sa.Text, default="")


class RunLog(Base):
    """One line of a run's log (records.run.LogLine)."""

    __tablename__ = "run_logs"
    __table_args__ = (sa.Index("ix_run_logs_run_id_id", "run_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"))
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    level: Mapped[str] = mapped_column(default="info")
    step: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(sa.Text)
    details: Mapped[dict[str, Any] | None]


class MetricPoint(Base):
    """One point of a curve (records.run.MetricPoint)."""

    __tablename__ = "metric_points"
    __table_args__ = (sa.UniqueConstraint("run_id", "key", "step"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    key: Mapped[str]
    step: Mapped[int]
    value: Mapped[float]
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
