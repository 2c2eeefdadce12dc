"""Add studies that the platform carries on."""

from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_schema("0026", "0027", "0028", "0029", revision).tables["decisions"].create(op.get_bind())
