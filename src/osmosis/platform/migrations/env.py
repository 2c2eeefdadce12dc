"""Alembic's entry: one transaction for all migrations, of which an empty database needs none. SQLite changes a table by
dropping it, which cascades, so foreign keys are off, and checked before the commit."""

import sqlalchemy as sa
from alembic import context

from osmosis.errors import Conflict
from osmosis.platform.tables import Base, UtcDateTime

MIGRATION_LOCK = 0x6F736D6F


def run(connection: sa.Connection, *, sqlite: bool) -> None:
    with connection.begin():
        if not sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=sqlite,
            compare_type=True,
            render_item=lambda kind, value, _: "UtcDateTime()" if isinstance(value, UtcDateTime) else False,
        )
        if context.get_revision_argument() == context.get_head_revision():
            migrations = context.get_context()
            if migrations.get_current_revision() is None:  # a second less of a first start
                Base.metadata.create_all(connection)
                migrations.stamp(context.script, "head")
        context.run_migrations()
        if sqlite:
            violations = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if violations:
                table, row, parent, _ = violations[0]
                raise Conflict(
                    f"the database cannot be upgraded to this version: {len(violations)} rows refer to missing ones, "
                    f"the first is row {row} of {table}, which refers to {parent}",
                    hint="nothing was changed; restore the data folder from a backup",
                )


engine: sa.Engine = context.config.attributes["engine"]
is_sqlite = engine.dialect.name == "sqlite"
with engine.connect() as opened:
    if is_sqlite:  # on the driver's connection: inside a transaction the pragma does nothing
        opened.connection.cursor().execute("PRAGMA foreign_keys=OFF")
    try:
        run(opened, sqlite=is_sqlite)
    finally:
        if is_sqlite:
            opened.connection.cursor().execute("PRAGMA foreign_keys=ON")
