"""Migrations; `schemas/<revision>.json` freezes the tables that a revision creates or changes."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from osmosis.platform.tables.base import NAMING, UtcDateTime

_TYPES: dict[str, TypeEngine[Any]] = {
    "bigint": sa.BigInteger(),
    "boolean": sa.Boolean(),
    "bytes": sa.LargeBinary(),
    "double": sa.Double(),
    "integer": sa.Integer(),
    "json": sa.JSON(none_as_null=True),
    "string": sa.String(),
    "text": sa.Text(),
    "time": UtcDateTime(),
}


def load_schema(*revisions: str) -> sa.MetaData:
    """Return the tables after these revisions. A column is `TYPE [key | null] [default VALUE]`."""
    metadata = sa.MetaData(naming_convention=NAMING)
    schema: dict[str, Any] = {}
    for revision in revisions:
        schema |= json.loads((Path(__file__).parent / "schemas" / f"{revision}.json").read_text())
    for name, spec in schema.items():
        table = sa.Table(name, metadata, *(_build_column(*item) for item in spec["columns"].items()))
        for column, target, on_delete in spec["foreign_keys"]:
            table.append_constraint(sa.ForeignKeyConstraint([column], [target], ondelete=on_delete))
        for columns in spec["unique"]:
            table.append_constraint(sa.UniqueConstraint(*columns))
        for index, columns in spec["indexes"].items():
            sa.Index(index, *(table.c[column] for column in columns))
    return metadata


def _build_column(name: str, text: str) -> sa.Column[Any]:
    kind, *words = text.split()
    default = words[words.index("default") + 1] if "default" in words else None
    return sa.Column(name, _TYPES[kind], primary_key="key" in words, nullable="null" in words, server_default=default)


def advance_sequences(connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
    for table in tables if connection.dialect.name == "postgresql" else ():
        column = table.autoincrement_column
        if column is not None:
            sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
            highest = sa.select(sa.func.coalesce(sa.func.max(column), 0) + 1).scalar_subquery()
            connection.execute(sa.select(sa.func.setval(sequence, highest, False)))
