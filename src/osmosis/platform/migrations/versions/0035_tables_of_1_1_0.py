"""Add the tables and columns of 1.1.0."""

import sqlalchemy as sa
from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0035"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    earlier, new = load_schema("0026", "0027"), load_schema("0026", "0027", revision)
    new.create_all(op.get_bind(), [table for table in new.sorted_tables if table.name not in earlier.tables])
    for name in ("environments", "optimization"):
        op.add_column("runs", sa.Column(name, sa.JSON(none_as_null=True), nullable=True))
