"""Workers have rows, and a job knows which of them has it, and who was handed its secrets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import Json, UtcDateTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("token_id", sa.String()),
        sa.Column("workspace_id", sa.String()),
        sa.Column("embedded", sa.Boolean(), nullable=False),
        sa.Column("machine", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("executor", sa.String(), nullable=False),
        sa.Column("kinds", Json, nullable=False),
        sa.Column("labels", Json, nullable=False),
        sa.Column("resources", Json, nullable=False),
        sa.Column("max_jobs", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("sandbox", sa.String(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("removed_at", UtcDateTime()),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_seen", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_workers_token_id_tokens", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_workers_workspace_id_workspaces", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    for column in ("name", "workspace_id", "last_seen"):
        op.create_index(f"ix_workers_{column}", "workers", [column])
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("worker_id", sa.String()))
        batch.add_column(sa.Column("secrets_taker", sa.String()))
        batch.create_foreign_key("fk_jobs_worker_id_workers", "workers", ["worker_id"], ["id"], ondelete="SET NULL")
        batch.create_index("ix_jobs_worker_id", ["worker_id"])
