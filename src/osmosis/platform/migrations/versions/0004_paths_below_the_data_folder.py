"""stored paths are relative to the data folder; the size of a rollout, which nothing read, is gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

DATASETS = "objects/datasets/"


def upgrade() -> None:
    connection = op.get_bind()
    repositories = sa.table("repositories", sa.column("id"), sa.column("kind"), sa.column("path"))
    for row_id, kind in connection.execute(sa.select(repositories.c.id, repositories.c.kind)).all():
        folder = "repositories" if kind == "internal" else "mirrors"
        moved = repositories.update().where(repositories.c.id == row_id).values(path=f"{folder}/{row_id}.git")
        connection.execute(moved)
    _shorten(connection, "datasets", "path")
    _shorten(connection, "runs", "dataset_path")
    with op.batch_alter_table("rollouts") as batch_op:
        batch_op.drop_column("size")


def downgrade() -> None:
    """Relative paths stay: they have no folder to go back to."""
    with op.batch_alter_table("rollouts") as batch_op:
        batch_op.add_column(sa.Column("size", sa.Integer(), nullable=False, server_default="0"))


def _shorten(connection: sa.Connection, name: str, column: str) -> None:
    """Keep of each stored path what lies below the data folder; a path of another shape stays."""
    table = sa.table(name, sa.column(column))
    stored = table.c[column]
    for path in connection.scalars(sa.select(stored).distinct().where(stored.contains("/" + DATASETS))).all():
        moved = table.update().where(stored == path).values({column: path[path.rindex(DATASETS) :]})
        connection.execute(moved)
