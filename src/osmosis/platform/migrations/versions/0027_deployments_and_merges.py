"""Move deployments and merges out of the table of runs, with their jobs and logs."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from osmosis.platform.migrations import advance_sequences, load_schema

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

OWNERS = {"serving": "deployment_id", "merge": "merge_id"}


def upgrade() -> None:
    connection = op.get_bind()
    old, new = load_schema("0026").tables, load_schema("0026", revision).tables
    runs, events = old["runs"], old["run_events"]
    merged = {
        "adapter": sa.func.coalesce(runs.c.config["model"].as_string(), ""),
        "dtype": sa.func.coalesce(runs.c.config["dtype"].as_string(), "auto"),
    }
    for table, kind, more in ((new["deployments"], "serving", {}), (new["merges"], "merge", merged)):
        table.create(connection)
        columns = {name: runs.c[name] for name in table.c.keys() if name in runs.c} | more  # noqa: SIM118 - columns
        query = sa.select(*columns.values()).where(runs.c.kind == kind)
        connection.execute(table.insert().from_select(list(columns), query))
    for name in ("jobs", "run_logs"):
        connection.execute(sa.text(f"CREATE TABLE old_{name} AS SELECT * FROM {name}"))
        old[name].drop(connection)
        new[name].create(connection)
        _copy(connection, old[name].to_metadata(sa.MetaData(), name=f"old_{name}"), new[name], runs)
        connection.execute(sa.text(f"DROP TABLE old_{name}"))
    moved = sa.select(runs.c.id).where(runs.c.kind.in_(OWNERS))
    connection.execute(events.delete().where(events.c.run_id.in_(moved)))
    connection.execute(runs.delete().where(runs.c.kind.in_(OWNERS)))
    advance_sequences(connection, [new["run_logs"]])


def _copy(connection: sa.Connection, old: sa.Table, new: sa.Table, runs: sa.Table) -> None:
    values: dict[str, sa.ColumnElement[Any]] = {name: column for name, column in old.c.items() if name in new.c}
    values["run_id"] = sa.case((runs.c.kind.not_in(OWNERS), old.c.run_id))
    for kind, column in OWNERS.items():
        values[column] = sa.case((runs.c.kind == kind, old.c.run_id))
    if new.name == "jobs":
        of_run = ("workspace_id", "kind", "priority")
        values |= {**{name: runs.c[name] for name in of_run}, "work_created_at": runs.c.created_at}
    query = sa.select(*values.values()).select_from(old.join(runs, runs.c.id == old.c.run_id))
    connection.execute(new.insert().from_select(list(values), query))
