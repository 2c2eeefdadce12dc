"""Datasets, base models, and uploads in progress, whose files are in the data folder; calls in production."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.platform.tables.base import Dated, Json, NumberedRow, Row, Updated
from osmosis.platform.tables.people import OwnedRow
from osmosis.records.base import utc_now


class Dataset(Updated, OwnedRow):
    __tablename__ = "datasets"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)

    name: Mapped[str]  # the file's stem; `file_name` on the wire
    format: Mapped[str]
    status: Mapped[str]
    size: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    row_count: Mapped[int | None]
    sha256: Mapped[str | None]
    path: Mapped[str | None]
    """The checked file below the data folder; a new version is a new file, so a run keeps its own."""
    preview: Mapped[list[dict[str, object]] | None] = mapped_column(Json)
    error: Mapped[str | None] = mapped_column(sa.Text)


class Upload(Updated, Row):
    __tablename__ = "uploads"

    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id", ondelete="CASCADE"), index=True)
    status: Mapped[str] = mapped_column(default="open")
    format: Mapped[str]
    size: Mapped[int] = mapped_column(sa.BigInteger)
    part_size: Mapped[int] = mapped_column(sa.BigInteger)  # Bytes per part; 0 for a simple upload
    parts: Mapped[int]
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")


class DatasetLog(NumberedRow):
    __tablename__ = "dataset_logs"

    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id", ondelete="CASCADE"), index=True)
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    level: Mapped[str] = mapped_column(default="info")
    step: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(sa.Text)
    details: Mapped[dict[str, object] | None] = mapped_column(Json)


class ProductionCall(Row):
    """A question to a model and its answer, of an application's trace or of a deployment."""

    __tablename__ = "production_calls"
    __table_args__ = (
        sa.UniqueConstraint("workspace_id", "external_id"),
        sa.Index("ix_production_calls_workspace_id_created_at", "workspace_id", "created_at"),
    )

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"))
    external_id: Mapped[str]  # `TRACE:SPAN`, or the id of a deployment's answer, by which an application knows it
    source: Mapped[str]
    model: Mapped[str]
    messages: Mapped[list[dict[str, object]]] = mapped_column(Json)
    answer: Mapped[str] = mapped_column(sa.Text)
    label: Mapped[str] = mapped_column(default="")
    dataset: Mapped[str] = mapped_column(default="")  # The dataset of which it became a row
    created_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)


class BaseModel(Updated, OwnedRow):
    __tablename__ = "base_models"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)

    name: Mapped[str]
    status: Mapped[str]
    files: Mapped[list[dict[str, object]]] = mapped_column(Json)
    size: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    architecture: Mapped[str | None]  # this and the three below are read from the files; None until it is ready
    parameters: Mapped[int | None] = mapped_column(sa.BigInteger)
    context_length: Mapped[int | None]
    chat_template: Mapped[bool | None]


class Repository(Dated, Row):
    __tablename__ = "repositories"

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), unique=True)
    kind: Mapped[str]
    full_name: Mapped[str] = mapped_column(index=True)  # `owner/repo` in lower case, as clients send it
    url: Mapped[str]
    path: Mapped[str]  # The bare repository below the data folder; of an external one, its mirror
    default_branch: Mapped[str] = mapped_column(default="main")
    trusted: Mapped[bool] = mapped_column(default=False)
    """An operator connected it: without a secret, their git credentials fetch it."""
    secret_name: Mapped[str | None]
    status: Mapped[str] = mapped_column(default="active")
    last_synced_commit: Mapped[str | None]
    last_synced_at: Mapped[datetime | None]


class SyncEvent(Row):
    __tablename__ = "sync_events"

    repository_id: Mapped[str] = mapped_column(sa.ForeignKey("repositories.id", ondelete="CASCADE"), index=True)
    status: Mapped[str] = mapped_column(default="Pending")
    branch: Mapped[str]
    commit_sha: Mapped[str]
    author: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(sa.Text, default="")
    rollouts_found: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    finished_at: Mapped[datetime | None]


class SyncedRollout(Dated, Row):
    __tablename__ = "synced_rollouts"
    __table_args__ = (sa.UniqueConstraint("repository_id", "commit_sha", "name"),)

    repository_id: Mapped[str] = mapped_column(sa.ForeignKey("repositories.id", ondelete="CASCADE"), index=True)
    branch: Mapped[str]
    commit_sha: Mapped[str] = mapped_column(index=True)
    name: Mapped[str]
    path: Mapped[str]
    kind: Mapped[str] = mapped_column(default="rollout")
    """`rollout`, or `reward_fn`, `reward_rubric`, `mcp` in the older layout."""
    description: Mapped[str | None] = mapped_column(sa.Text)
