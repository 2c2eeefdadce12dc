"""A rollout is known by its step and its row's key, no more by the row's place in the file.

Rollouts of 1.0 get the keys that 1.0's journals get when they are read: the hash of their row's content, the number of
the row among those of the same content, or the row's place where no hash was stored. The records get them, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

PAGE = 500
ROLLOUTS = sa.table(
    "rollouts",
    *(sa.column(name) for name in ("id", "run_id", "row_index", "attempt", "step", "row_key", "body")),
)


def upgrade() -> None:
    with op.batch_alter_table("rollouts") as batch:
        batch.add_column(sa.Column("step", sa.Integer()))
        batch.add_column(sa.Column("row_key", sa.String()))
    connection = op.get_bind()
    runs = list(connection.execute(sa.select(ROLLOUTS.c.run_id).distinct()).scalars())
    for run_id in runs:
        _fill(connection, run_id)
    with op.batch_alter_table("rollouts") as batch:
        batch.alter_column("step", existing_type=sa.Integer(), nullable=False)
        batch.alter_column("row_key", existing_type=sa.String(), nullable=False)
        batch.drop_constraint("uq_rollouts_run_id_row_index_attempt", type_="unique")
        batch.create_unique_constraint(
            "uq_rollouts_run_id_step_row_key_attempt", ["run_id", "step", "row_key", "attempt"]
        )
        batch.create_index("ix_rollouts_run_id_row_index_attempt", ["run_id", "row_index", "attempt"])


def _fill(connection: sa.Connection, run_id: str) -> None:
    made: dict[int, str] = {}
    numbers: dict[str, int] = {}
    update = (
        sa.update(ROLLOUTS)
        .where(ROLLOUTS.c.id == sa.bindparam("rollout"))
        .values(step=0, row_key=sa.bindparam("key"), body=sa.bindparam("text"))
    )
    for page in _pages(connection, run_id):
        values = []
        for rollout, row_index, text in page:
            body = json.loads(text)
            if row_index not in made:
                made[row_index] = _key(row_index, (body.get("hashes") or {}).get("row"), numbers)
            body.update(step=0, row_key=made[row_index])
            record = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
            values.append({"rollout": rollout, "key": made[row_index], "text": record})
        connection.execute(update, values)


def _key(row_index: int, content_hash: str | None, numbers: dict[str, int]) -> str:
    if content_hash is None:
        return f"@{row_index}"
    number = numbers[content_hash] = numbers.get(content_hash, 0) + 1
    return content_hash if number == 1 else f"{content_hash}#{number}"


def _pages(connection: sa.Connection, run_id: str) -> Iterator[Sequence[Any]]:
    """(id, row index, record) of a run in the order of rows, in bounded memory."""
    place = sa.tuple_(ROLLOUTS.c.row_index, ROLLOUTS.c.attempt)
    query = sa.select(ROLLOUTS.c.id, ROLLOUTS.c.row_index, ROLLOUTS.c.body, ROLLOUTS.c.attempt)
    query = query.where(ROLLOUTS.c.run_id == run_id).order_by(ROLLOUTS.c.row_index, ROLLOUTS.c.attempt).limit(PAGE)
    last: tuple[int, int] = (-1, -1)
    while page := connection.execute(query.where(place > sa.tuple_(*map(sa.literal, last)))).all():
        last = (page[-1].row_index, page[-1].attempt)
        yield [(row.id, row.row_index, row.body) for row in page]
