"""Git repositories connected to workspaces, and what Git Sync saw in them."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, new_id


class Repository(Base):
    """The one repository of a workspace: hosted here (`internal`) or elsewhere (`external`)."""

    __tablename__ = "repositories"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), unique=True)
    kind: Mapped[str]
    """`internal` or `external`."""
    full_name: Mapped[str] = mapped_column(index=True)
    """`owner/repo`, lower-case: the identity that clients send."""
    url: Mapped[str]
    """What people put into `git remote`; never carries a credential."""
    path: Mapped[str]
    """The bare repository below the data folder: the hosted one, or the mirror of an external one."""
    default_branch: Mapped[str] = mapped_column(default="main")
    trusted: Mapped[bool] = mapped_column(default=False)
    """Connected by the person who runs the platform, whose git credentials fetch it where it has no secret."""
    secret_name: Mapped[str | None]
    """The secret of the workspace that fetches it: a token, or a key."""
    status: Mapped[str] = mapped_column(default="active")
    """`active` or `inactive`."""
    last_synced_commit: Mapped[str | None]
    """Of the default branch."""
    last_synced_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class SyncEvent(Base):
    """One branch update and what became of it."""

    __tablename__ = "sync_events"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    repository_id: Mapped[str] = mapped_column(sa.ForeignKey("repositories.id", ondelete="CASCADE"), index=True)
    status: Mapped[str] = mapped_column(default="Pending")
    """`Pending`, `Syncing`, `Success` or `Failed` (records.run.SyncStatus)."""
    branch: Mapped[str]
    commit_sha: Mapped[str]
    author: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(sa.Text, default="")
    rollouts_found: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    finished_at: Mapped[datetime | None]


class SyncedRollout(Base):
    """A rollout as it stands in one synced commit."""

    __tablename__ = "synced_rollouts"
    __table_args__ = (sa.UniqueConstraint("repository_id", "commit_sha", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    repository_id: Mapped[str] = mapped_column(sa.ForeignKey("repositories.id", ondelete="CASCADE"), index=True)
    branch: Mapped[str]
    commit_sha: Mapped[str] = mapped_column(index=True)
    name: Mapped[str]
    path: Mapped[str]
    """Folder inside the repository, e.g. `rollouts/multiply`."""
    kind: Mapped[str] = mapped_column(default="rollout")
    """`rollout`, or `reward_fn`, `reward_rubric`, `mcp` of the older layout."""
    description: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
