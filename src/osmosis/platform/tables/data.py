"""Datasets, base models, and uploads in progress. The files themselves lie in folders of the data folder."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, Json, new_id


class Dataset(Base):
    __tablename__ = "datasets"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    name: Mapped[str]
    """The file's stem: `file_name` on the wire."""
    format: Mapped[str]
    """`csv`, `jsonl` or `parquet`."""
    status: Mapped[str]
    """records.dataset.DatasetStatus."""
    size: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    row_count: Mapped[int | None]
    sha256: Mapped[str | None]
    path: Mapped[str | None]
    """The validated file below the data folder; a new version is a new file, so a run keeps the one it started with."""
    preview: Mapped[list[dict[str, object]] | None] = mapped_column(Json)
    error: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


class Upload(Base):
    """One file on its way in: a first upload or a new version of a dataset."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id", ondelete="CASCADE"), index=True)
    status: Mapped[str] = mapped_column(default="open")
    """`open`, `processing`, `done`, `failed` or `aborted`."""
    format: Mapped[str]
    size: Mapped[int] = mapped_column(sa.BigInteger)
    part_size: Mapped[int] = mapped_column(sa.BigInteger)
    """Bytes per part; 0 = simple upload."""
    parts: Mapped[int]
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often its check was begun."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


class DatasetLog(Base):
    """What happened to a dataset, and every error found in it."""

    __tablename__ = "dataset_logs"

    id: Mapped[int] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id", ondelete="CASCADE"), index=True)
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    level: Mapped[str] = mapped_column(default="info")
    step: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(sa.Text)
    details: Mapped[dict[str, object] | None] = mapped_column(Json)


class BaseModel(Base):
    """A model that training runs start from; its folder is `models/base/<id>`."""

    __tablename__ = "base_models"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    name: Mapped[str]
    status: Mapped[str]
    """`uploading` or `ready`."""
    files: Mapped[list[dict[str, object]]] = mapped_column(Json)
    """records.contract.model_bodies.AnnouncedFile, sorted by path."""
    size: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    architecture: Mapped[str | None]
    """Of what the files say, like the three below; None until it is ready."""
    parameters: Mapped[int | None] = mapped_column(sa.BigInteger)
    context_length: Mapped[int | None]
    chat_template: Mapped[bool | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
