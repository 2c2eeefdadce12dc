"""Rollout servers that said they exist: where each answers, and what the last check of it found."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, new_id


class RolloutServer(Base):
    __tablename__ = "rollout_servers"
    __table_args__ = (sa.UniqueConstraint("owner_id", "host", "port"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    """One registration; a server that registers again gets another one."""
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="SET NULL"), index=True)
    """None: known to its owner only."""
    owner_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"))
    host: Mapped[str]
    port: Mapped[int]
    agent_loop_name: Mapped[str]
    key_id: Mapped[str | None]
    """This and the next two: the server's own API key, sealed; all None when it has none."""
    nonce: Mapped[bytes | None]
    ciphertext: Mapped[bytes | None]
    status: Mapped[str]
    """`healthy` or `unhealthy`, as last checked; what is shown also depends on `last_seen`."""
    error: Mapped[str | None] = mapped_column(sa.Text)
    """Why it is unhealthy."""
    last_seen: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
