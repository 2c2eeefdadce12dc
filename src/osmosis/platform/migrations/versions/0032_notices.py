"""Add messages that are not delivered yet."""

from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_schema("0026", "0027", "0028", "0029", revision).tables["notices"].create(op.get_bind())
