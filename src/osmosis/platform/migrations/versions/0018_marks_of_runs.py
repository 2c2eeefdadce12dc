"""What people write on runs: tags, a note, a pin."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("tags", sa.JSON(none_as_null=True), nullable=False, server_default=sa.text("'[]'")))
        batch.add_column(sa.Column("note", sa.Text(), nullable=False, server_default=sa.text("''")))
        batch.add_column(sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("runs") as batch:
        for name, kind in (("tags", sa.JSON(none_as_null=True)), ("note", sa.Text()), ("pinned", sa.Boolean())):
            batch.alter_column(name, existing_type=kind, existing_nullable=False, server_default=None)
