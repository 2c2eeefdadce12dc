"""Add the calls of models in production: questions, answers and labels."""

from alembic import op

from osmosis.platform.migrations import load_schema

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_schema("0026", "0027", "0028", revision).tables["production_calls"].create(op.get_bind())
