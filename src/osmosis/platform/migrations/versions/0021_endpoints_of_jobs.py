"""Which endpoint a job asks, and until when that wants no more calls."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import UtcDateTime

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("endpoint", sa.String(), nullable=False, server_default=""))
        batch.add_column(sa.Column("paused_until", UtcDateTime()))
        batch.create_index("ix_jobs_paused_until", ["paused_until"])
    with op.batch_alter_table("jobs") as batch:
        batch.alter_column("endpoint", existing_type=sa.String(), existing_nullable=False, server_default=None)
