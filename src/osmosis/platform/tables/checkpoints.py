"""Checkpoints of training runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, new_id


class Checkpoint(Base):
    __tablename__ = "checkpoints"
    __table_args__ = (sa.UniqueConstraint("run_id", "step"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    step: Mapped[int]
    status: Mapped[str]
    base_model: Mapped[str]
    path: Mapped[str]
    reward: Mapped[float | None]
    details: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
