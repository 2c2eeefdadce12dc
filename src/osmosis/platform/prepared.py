"""A statement that every request asks: compiled once, run on a connection of the pool, without a session.

What it finds is what a session would have loaded. It sees what is committed at this moment; it
is for one statement that reads, and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import attributes, class_mapper

from .db import Database
from .tables import Base

Row = TypeVar("Row", bound=Base)


class PreparedSelect:
    """A SELECT of columns, asked for its first row. Its parameters are `bindparam`s, named when it is run."""

    def __init__(self, statement: sa.Select[Any]) -> None:
        self._statement = statement.limit(1)
        self._ready: dict[str, _Ready] = {}

    def first(self, db: Database, **values: object) -> list[Any] | None:
        """The columns of the first row, as their types say; None without one. `values` are text."""
        engine = db.engine
        ready = self._ready.get(engine.dialect.name)
        if ready is None:
            ready = self._ready[engine.dialect.name] = _Ready(self._statement, engine.dialect)
        with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
            try:
                cursor.execute(ready.text, ready.parameters(values))
            except (engine.dialect.loaded_dbapi.DataError, UnicodeEncodeError):
                return None  # no row has a value that cannot be stored
            found = cursor.fetchone()
            return None if found is None else ready.read(found, [column[1] for column in cursor.description])


class _Ready:
    """The statement in the words of one database."""

    def __init__(self, statement: sa.Select[Any], dialect: sa.Dialect) -> None:
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self.text = compiled.string
        self._fixed = dict(compiled.params)
        self._order: Sequence[str] | None = compiled.positiontup if compiled.positional else None
        self._dialect = dialect
        self._columns = [column.type.dialect_impl(dialect) for column in statement.selected_columns]
        self._readers: list[Callable[[Any], Any] | None] | None = None

    def parameters(self, values: dict[str, object]) -> Any:
        given = {**self._fixed, **values}
        return given if self._order is None else tuple(given[name] for name in self._order)

    def read(self, found: Sequence[Any], types: Sequence[Any]) -> list[Any]:
        """`types` are the driver's words for the columns; PostgreSQL reads numbers by them."""
        if self._readers is None:
            self._readers = [
                column.result_processor(self._dialect, type_)
                for column, type_ in zip(self._columns, types, strict=True)
            ]
        return [value if read is None else read(value) for read, value in zip(self._readers, found, strict=True)]


def loaded(table: type[Row], values: Sequence[Any]) -> Row:
    """The object of a row, as one that a session loaded and has let go of. `values` are all columns, the id first."""
    mapper = class_mapper(table)
    row: Row = mapper.class_manager.new_instance()
    row.__dict__.update(zip(mapper.columns.keys(), values, strict=True))
    attributes.instance_state(row).key = mapper.identity_key_from_primary_key((values[0],))
    return row
