"""Rollouts of runs: a few columns to list and count by, and the whole record as JSON text."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base


class Rollout(Base):
    """One attempt at one row of a run. The unique key makes every rollout count once."""

    __tablename__ = "rollouts"
    __table_args__ = (
        sa.UniqueConstraint("run_id", "step", "row_key", "attempt"),
        sa.Index("ix_rollouts_run_id_row_index_attempt", "run_id", "row_index", "attempt"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    rollout_id: Mapped[str]
    row_index: Mapped[int]
    """Where the row stood in the dataset: by this and the attempt, people and clients ask for a rollout."""
    step: Mapped[int] = mapped_column(default=0)
    """Of a training run; 0 elsewhere."""
    row_key: Mapped[str]
    """records.keys: which row it is, wherever it stands."""
    attempt: Mapped[int]
    status: Mapped[str]
    """records.rollout.RolloutStatus."""
    reward: Mapped[float | None]
    """The first score; None when there is none or it failed."""
    tokens: Mapped[int] = mapped_column(default=0)
    duration_ms: Mapped[float] = mapped_column(default=0.0)
    failure_category: Mapped[str | None]
    body: Mapped[str] = mapped_column(sa.Text, deferred=True)
    """records.rollout.Rollout as JSON text; loaded only when asked for."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
