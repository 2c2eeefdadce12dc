"""Add benchmark runs: names for several evaluations of the same tasks."""

from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_schema("0026", "0027", revision).tables["benchmark_runs"].create(op.get_bind())
