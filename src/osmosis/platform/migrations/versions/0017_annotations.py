"""What people say about rollouts: a table of its own, which only grows, as the file beside a local journal does."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import UtcDateTime

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "annotations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("author_id", sa.String()),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("row_index", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_annotations_run_id_runs", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["author_id"], ["users.id"], name="fk_annotations_author_id_users", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_annotations"),
    )
    op.create_index("ix_annotations_run_id", "annotations", ["run_id"])
