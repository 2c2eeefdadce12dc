"""Priorities of runs, what jobs ask for, and how much of it a workspace may have in use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("workspaces") as batch:
        batch.add_column(sa.Column("max_cpus", sa.Double()))
        batch.add_column(sa.Column("max_memory_mb", sa.Integer()))
        batch.add_column(sa.Column("max_gpus", sa.Integer()))
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("runs") as batch:
        batch.alter_column("priority", existing_type=sa.Integer(), existing_nullable=False, server_default=None)
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("cpus", sa.Double(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("memory_mb", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("gpus", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("jobs") as batch:
        batch.alter_column("cpus", existing_type=sa.Double(), existing_nullable=False, server_default=None)
        for name in ("memory_mb", "gpus"):
            batch.alter_column(name, existing_type=sa.Integer(), existing_nullable=False, server_default=None)
