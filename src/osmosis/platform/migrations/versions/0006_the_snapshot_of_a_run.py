"""What a submitted working tree had beyond its commit is a column of the run, no more a key of `[advanced]`.

Runs of earlier versions get theirs out of their config.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import Json

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

RUNS = sa.table("runs", sa.column("id"), sa.column("config", Json), sa.column("snapshot", Json))


def upgrade() -> None:
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("snapshot", Json, nullable=True))
    connection = op.get_bind()
    for run_id, config in connection.execute(sa.select(RUNS.c.id, RUNS.c.config)).all():
        advanced = dict((config or {}).get("advanced") or {})
        if (snapshot := advanced.pop("snapshot", None)) is None:
            continue
        values = {"config": {**config, "advanced": advanced}, "snapshot": snapshot}
        connection.execute(sa.update(RUNS).where(RUNS.c.id == run_id).values(values))
