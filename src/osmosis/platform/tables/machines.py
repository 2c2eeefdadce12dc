"""The workers of a platform: what runs its jobs, and where."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, Json, new_id


class Worker(Base):
    """One worker, as it said hello last. What the columns mean together: `services.fleet`."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(index=True)
    token_id: Mapped[str | None] = mapped_column(sa.ForeignKey("tokens.id", ondelete="SET NULL"))
    """The token it works with; None for the platform's own."""
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    """The only workspace whose runs it takes; None: all."""
    embedded: Mapped[bool] = mapped_column(default=False)
    """Of the platform itself: it shares its disk."""
    machine: Mapped[str]
    version: Mapped[str]
    protocol: Mapped[int]
    executor: Mapped[str]
    kinds: Mapped[list[str]] = mapped_column(Json)
    labels: Mapped[dict[str, str]] = mapped_column(Json)
    resources: Mapped[dict[str, float]] = mapped_column(Json)
    """records.worker.Resources: all it has."""
    max_jobs: Mapped[int]
    slots: Mapped[int] = mapped_column(default=0)
    """How many more jobs it would have taken when it was last seen."""
    sandbox: Mapped[str]
    draining: Mapped[bool] = mapped_column(default=False)
    removed_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    last_seen: Mapped[datetime] = mapped_column(default=utc_now, index=True)
