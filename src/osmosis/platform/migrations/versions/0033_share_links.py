"""Add links with which anybody may read a run."""

from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_schema("0026", "0027", "0028", "0029", revision).tables["share_links"].create(op.get_bind())
