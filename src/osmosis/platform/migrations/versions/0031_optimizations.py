"""Add what a search over prompts has tried to its run."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("optimization", sa.JSON(none_as_null=True), nullable=True))
