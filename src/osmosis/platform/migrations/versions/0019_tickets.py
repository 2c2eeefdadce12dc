"""A job that a scheduler starts has a ticket, which is changed for the lease; so a lease has a name of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import UtcDateTime

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("lease_id", sa.String()))
        batch.add_column(sa.Column("ticket_hash", sa.String()))
        batch.add_column(sa.Column("ticket_until", UtcDateTime()))
        batch.add_column(sa.Column("ticket_taker", sa.String()))
        batch.add_column(sa.Column("place", sa.String()))
        batch.create_unique_constraint("uq_jobs_ticket_hash", ["ticket_hash"])
    op.execute("UPDATE jobs SET lease_id = substr(lease_hash, 1, 16)")
