"""Secrets, encrypted. A row moved to another owner cannot be decrypted any more (associated data)."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, new_id


class Secret(Base):
    __tablename__ = "secrets"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "scope", "owner_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    scope: Mapped[str]
    """`workspace`, `user`, or `run` for a value given with one run only."""
    owner_id: Mapped[str]
    """Id of the workspace, the user or the run, by scope."""
    name: Mapped[str]
    version: Mapped[int] = mapped_column(default=1)
    key_id: Mapped[str]
    nonce: Mapped[bytes]
    ciphertext: Mapped[bytes]
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    updater_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    last_used_at: Mapped[datetime | None]
    last_used_by: Mapped[str | None]
    """Name of the run whose job was last given the value."""
