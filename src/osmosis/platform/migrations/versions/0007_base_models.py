"""The store of base models: one row each, its files in a folder."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import Json, UtcDateTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "base_models",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False),
        sa.Column("creator_id", sa.String(), sa.ForeignKey("users.id", ondelete="SET NULL"), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("files", Json, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("architecture", sa.String(), nullable=True),
        sa.Column("parameters", sa.BigInteger(), nullable=True),
        sa.Column("context_length", sa.Integer(), nullable=True),
        sa.Column("chat_template", sa.Boolean(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.UniqueConstraint("workspace_id", "name"),
    )
    op.create_index("ix_base_models_workspace_id", "base_models", ["workspace_id"])
