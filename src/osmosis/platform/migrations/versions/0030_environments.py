"""Add the environments of a training run that mixes several."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("environments", sa.JSON(none_as_null=True), nullable=True))
