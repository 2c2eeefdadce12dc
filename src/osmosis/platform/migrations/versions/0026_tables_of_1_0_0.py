"""Create the tables of 1.0.0 and fill them with the rows of revision 0004. A rollout's key is the one that reading its
journal gives: the hash of its row, with the row's number among equal ones; without a hash, the row's place."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from osmosis.platform.migrations import advance_sequences, load_schema

revision = "0026"
down_revision = "0004"
branch_labels = None
depends_on = None

PAGE = 500
JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    connection = op.get_bind()
    old, new = load_schema("0004"), load_schema(revision)
    for name in old.tables:
        connection.execute(sa.text(f"CREATE TABLE old_{name} AS SELECT * FROM {name}"))
    old.drop_all(connection)
    new.create_all(connection)
    for table in new.sorted_tables:
        if table.name in old.tables:
            _copy(connection, old.tables[table.name], table)
    _make_jobs(connection, new.tables["jobs"])
    _move_snapshots(connection, new.tables["runs"])
    for run_id in connection.execute(sa.select(new.tables["rollouts"].c.run_id).distinct()).scalars().all():
        _set_row_keys(connection, new.tables["rollouts"], run_id)
    for name in old.tables:
        connection.execute(sa.text(f"DROP TABLE old_{name}"))
    advance_sequences(connection, new.sorted_tables)


def _copy(connection: sa.Connection, old: sa.Table, new: sa.Table) -> None:
    values: dict[str, sa.ColumnElement[Any]] = {name: sa.column(name) for name in new.columns.keys() if name in old.c}  # noqa: SIM118 - columns, not a dict
    values |= _build_new_values(new.name)
    query = sa.select(*values.values()).select_from(sa.table(f"old_{old.name}"))
    connection.execute(new.insert().from_select(list(values), query))


def _build_new_values(table: str) -> dict[str, sa.ColumnElement[Any]]:
    no, yes = sa.literal(False), sa.literal(True)
    if table == "users":  # the first person runs the platform
        users = sa.table("old_users", sa.column("id"), sa.column("created_at"))
        first = sa.select(users.c.id).order_by(users.c.created_at, users.c.id).limit(1).scalar_subquery()
        return {"operator": sa.column("id") == first}
    if table == "tokens":
        scopes = {"session": "api", "device": "api git inference"}
        return {"scopes": sa.case(scopes, value=sa.column("kind"), else_="api git")}
    if table == "repositories":  # they were fetched with the credentials of whoever runs the platform
        return {"trusted": yes}
    if table == "uploads":
        return {"attempts": sa.literal(0)}
    if table == "runs":
        return {"priority": sa.literal(0), "tags": sa.literal([], JSON), "note": sa.literal(""), "pinned": no}
    if table == "rollouts":
        place = sa.literal("@").concat(sa.cast(sa.column("row_index"), sa.String()))
        return {"step": sa.literal(0), "row_key": place}
    return {}


def _make_jobs(connection: sa.Connection, jobs: sa.Table) -> None:
    kept: dict[str, sa.ColumnElement[Any]] = {
        name: sa.column(name) for name in ("lease_hash", "lease_until", "worker", "starts", "handle")
    }
    status: sa.ColumnElement[Any] = sa.column("status")
    values: dict[str, sa.ColumnElement[Any]] = {
        "id": sa.column("id"),
        "run_id": sa.column("id"),
        "shard": sa.literal(0),
        "shards": sa.literal(1),
        "state": sa.case(
            (status == "pending", "waiting"),
            (status != "running", "over"),
            (kept["lease_hash"].is_(None), "waiting"),
            else_="held",
        ),
        "rollouts": sa.literal(1),
        "cpus": sa.literal(0.0),
        "memory_mb": sa.literal(0),
        "gpus": sa.literal(0),
        "lost": sa.literal(0),
        "endpoint": sa.literal(""),
        "lease_id": sa.func.substr(kept["lease_hash"], 1, 16),
        **kept,
    }
    query = sa.select(*values.values()).select_from(sa.table("old_runs")).where(sa.column("imported").is_(None))
    connection.execute(jobs.insert().from_select(list(values), query))


def _move_snapshots(connection: sa.Connection, runs: sa.Table) -> None:
    for run_id, config in connection.execute(sa.select(runs.c.id, runs.c.config)).all():
        advanced = dict((config or {}).get("advanced") or {})
        if (snapshot := advanced.pop("snapshot", None)) is not None:
            values = {"config": {**config, "advanced": advanced}, "snapshot": snapshot}
            connection.execute(runs.update().where(runs.c.id == run_id).values(values))


def _set_row_keys(connection: sa.Connection, rollouts: sa.Table, run_id: str) -> None:
    keys: dict[int, str] = {}
    counts: dict[str, int] = {}
    update = (
        rollouts.update()
        .where(rollouts.c.id == sa.bindparam("rollout"))
        .values(row_key=sa.bindparam("key"), body=sa.bindparam("text"))
    )
    for page in _iterate_pages(connection, rollouts, run_id):
        values = []
        for rollout, row_index, text in page:
            body = json.loads(text)
            if row_index not in keys:
                keys[row_index] = _build_key(row_index, (body.get("hashes") or {}).get("row"), counts)
            body.update(step=0, row_key=keys[row_index])
            record = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
            values.append({"rollout": rollout, "key": keys[row_index], "text": record})
        connection.execute(update, values)


def _build_key(row_index: int, content_hash: str | None, counts: dict[str, int]) -> str:
    if content_hash is None:
        return f"@{row_index}"
    count = counts[content_hash] = counts.get(content_hash, 0) + 1
    return content_hash if count == 1 else f"{content_hash}#{count}"


def _iterate_pages(connection: sa.Connection, rollouts: sa.Table, run_id: str) -> Iterator[Sequence[Any]]:
    place = sa.tuple_(rollouts.c.row_index, rollouts.c.attempt)
    query = sa.select(rollouts.c.id, rollouts.c.row_index, rollouts.c.body, rollouts.c.attempt)
    query = query.where(rollouts.c.run_id == run_id).order_by(rollouts.c.row_index, rollouts.c.attempt).limit(PAGE)
    last: tuple[int, int] = (-1, -1)
    while page := connection.execute(query.where(place > sa.tuple_(*map(sa.literal, last)))).all():
        last = (page[-1].row_index, page[-1].attempt)
        yield [(row.id, row.row_index, row.body) for row in page]
