"""Create the tables that data folders from before 1.0.0 may have."""

from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_schema(revision).create_all(op.get_bind())
