"""Alembic's entry: runs on the connection that `Database.migrate` hands over. Not for the command line."""

from __future__ import annotations

from alembic import context

from osmosis.platform.tables import Base, UtcDateTime

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
    render_item=lambda kind, value, _: "UtcDateTime()" if isinstance(value, UtcDateTime) else False,
)
with context.begin_transaction():
    context.run_migrations()
