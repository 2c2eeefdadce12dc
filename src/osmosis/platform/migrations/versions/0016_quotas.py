"""Quotas of workspaces, how many rollouts a job has in flight, and when a workspace was served last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import UtcDateTime

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("workspaces") as batch:
        for name in ("max_runs", "max_rollouts", "max_datasets"):
            batch.add_column(sa.Column(name, sa.Integer()))
        batch.add_column(sa.Column("max_bytes", sa.BigInteger()))
        batch.add_column(sa.Column("served_at", UtcDateTime()))
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("rollouts", sa.Integer(), nullable=False, server_default="1"))
    with op.batch_alter_table("jobs") as batch:
        batch.alter_column("rollouts", existing_type=sa.Integer(), existing_nullable=False, server_default=None)
