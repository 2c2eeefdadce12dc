"""Local runs on their way in: one session per upload of a run, and the files it announced.

The files themselves lie in the object folder until the session is finalized; then the run holds what they said.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, new_id


class Import(Base):
    __tablename__ = "imports"
    __table_args__ = (
        sa.Index("ix_imports_digest", "workspace_id", "digest"),
        sa.Index("ix_imports_local_run", "workspace_id", "local_run_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"))
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    run_id: Mapped[str | None] = mapped_column(sa.ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The run it became; None before that, and after that run was deleted."""
    digest: Mapped[str]
    """`manifest_digest`, as the client made it: the same upload is the same session."""
    local_run_id: Mapped[str]
    status: Mapped[str] = mapped_column(default="uploading")
    """`uploading`, `finalized`, or `replaced` by a later upload of the same run."""
    reimport: Mapped[bool] = mapped_column(default=False)
    """Put it in the place of an earlier upload of the same run."""
    run: Mapped[dict[str, Any]]
    """`run` of the manifest, checked."""
    provenance: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]
    """An unfinished session is forgotten then."""


class ImportFile(Base):
    __tablename__ = "import_files"
    __table_args__ = (sa.UniqueConstraint("import_id", "path"),)

    import_id: Mapped[str] = mapped_column(sa.ForeignKey("imports.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """Its place in the manifest, and its name on disk."""
    path: Mapped[str]
    size: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str]
    uploaded: Mapped[bool] = mapped_column(default=False)
