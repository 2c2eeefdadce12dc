"""Dump every row of a database as lines of JSON, from one view, and load it into SQLite or PostgreSQL."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone

import sqlalchemy as sa

from osmosis.base.jsonable import JsonObject
from osmosis.platform.migrations import advance_sequences

VERSIONS = "alembic_version"
ROWS_AT_ONCE = 500
PIECE_BYTES = 8 * 1024 * 1024
"""Approximate size of a piece, in bytes; a longer row is a piece of its own."""

Change = Callable[[JsonObject], JsonObject]


@contextmanager
def open_snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    options: JsonObject = {"reading": True}
    if engine.dialect.name != "sqlite":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as connection:
        yield connection


def reflect_tables(connection: sa.Connection) -> sa.MetaData:
    tables = sa.MetaData()

    @sa.event.listens_for(tables, "column_reflect")
    def _as_stored(_inspector: object, _table: object, column: JsonObject) -> None:
        if isinstance(column["type"], sa.JSON):
            column["type"] = sa.JSON(none_as_null=True)

    tables.reflect(connection)
    return tables


def dump_pieces(connection: sa.Connection) -> Iterator[tuple[str, bytes]]:
    streaming = connection.execution_options(stream_results=True)
    for table in reflect_tables(connection).sorted_tables:
        if table.name == VERSIONS:
            continue
        lines: list[bytes] = []
        size = 0
        for row in streaming.execute(sa.select(table)).yield_per(ROWS_AT_ONCE).mappings():
            lines.append(_line(dict(row)))
            size += len(lines[-1])
            if size >= PIECE_BYTES:
                yield table.name, b"".join(lines)
                lines, size = [], 0
        if lines:
            yield table.name, b"".join(lines)


def load_pieces(connection: sa.Connection, dumped: Iterable[tuple[str, bytes]], changes: Mapping[str, Change]) -> int:
    tables = reflect_tables(connection)
    total = 0
    for name, text in dumped:
        table = tables.tables[name]
        change = changes.get(name)
        rows = [_row(table, line, aware=connection.dialect.name != "sqlite") for line in text.splitlines()]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            connection.execute(table.insert(), [change(row) for row in some] if change else some)
        total += len(rows)
    advance_sequences(connection, tables.sorted_tables)
    return total


def _line(row: Mapping[str, object]) -> bytes:
    return json.dumps({name: _plain(value) for name, value in row.items()}, separators=(",", ":")).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return moment.astimezone(timezone.utc).isoformat()
    if isinstance(value, (bytes, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    return value


def _row(table: sa.Table, line: bytes, *, aware: bool) -> JsonObject:
    row: JsonObject = json.loads(line)
    for name, value in row.items():
        kind = table.columns[name].type
        if value is not None and isinstance(kind, sa.DateTime):
            moment = datetime.fromisoformat(value)
            row[name] = moment if aware else moment.replace(tzinfo=None)
        elif value is not None and isinstance(kind, sa.LargeBinary):
            row[name] = base64.b64decode(value)
    return row
