"""Add evaluations that the platform submits again and again."""

from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_schema("0026", "0027", "0028", "0029", revision).tables["schedules"].create(op.get_bind())
