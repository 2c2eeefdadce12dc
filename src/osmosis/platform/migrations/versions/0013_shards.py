"""A job may be a shard of its run: which of how many, how far it is, how it ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import Json

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("shards", sa.Integer(), nullable=False, server_default="1"))
        batch.add_column(sa.Column("progress", Json))
        batch.add_column(sa.Column("report", Json))
        batch.add_column(sa.Column("status", sa.String()))
