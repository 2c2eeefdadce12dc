"""Repositories know who connected them and which secret fetches them.

Those that are connected were fetched with the credentials of whoever runs the platform, and go on so.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("repositories") as batch:
        batch.add_column(sa.Column("trusted", sa.Boolean(), nullable=False, server_default=sa.true()))
        batch.add_column(sa.Column("secret_name", sa.String()))
    with op.batch_alter_table("repositories") as batch:
        batch.alter_column("trusted", existing_type=sa.Boolean(), existing_nullable=False, server_default=None)
