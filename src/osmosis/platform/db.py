"""The database: one sync engine, short sessions, migrations at start.

SQLite (WAL, `BEGIN IMMEDIATE` for writers, so a busy database waits instead of failing half-way) or Postgres by
URL; the code above sees no difference. Hands out sessions that commit or roll back as a whole; keeps none open
and does no network or process work inside one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from osmosis.errors import Conflict, ValidationError

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0026"
"""The newest migration; a test compares it with the files."""
BUSY_TIMEOUT_MS = 30_000
SHARED = "shared"
"""The key in `Session.info` of what the views of a process keep between them."""
WORK = "work"
"""The key in `Session.info` of a transaction that puts work for a worker into the database."""


def open_engine(url: str) -> sa.Engine:
    """An engine for the URL; SQLite connections are set up for many threads and processes."""
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=30, json_deserializer=_read_json)
    engine = sa.create_engine(url, pool_size=10, max_overflow=50, json_deserializer=_read_json)

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, see below
        for pragma in (
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _read_json(text: str) -> object:
    """What a JSON column holds; the standard library reads what an earlier version may have stored (NaN)."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


@contextmanager
def storable_values() -> Iterator[None]:
    """ValidationError where a value cannot be a column's: a number beyond 64 bits, half a character, a NUL.

    Only what came from outside can be such a value: each is refused here, whichever statement meets it first.
    """
    try:
        yield
    except (OverflowError, UnicodeEncodeError, sa.exc.DataError) as error:
        raise ValidationError(f"a value cannot be stored: {_why(error)}") from error


def _why(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "a number does not fit 64 bits"
    if isinstance(error, UnicodeEncodeError):
        return "text holds half a character (a lone surrogate)"
    return str(getattr(error, "orig", error)).split("\n")[0][:200]


def count_of(session: Session, query: sa.Select[Any]) -> int:
    """How many rows a query without grouping finds, whatever it selects: counted in an index where one will do."""
    counting = query.order_by(None).with_only_columns(sa.func.count(), maintain_column_froms=True)
    return session.scalar(counting) or 0


def changed_by(session: Session, statement: sa.Update | sa.Delete, **options: bool) -> int:
    """Execute it, with these options of its execution; how many rows it changed or removed."""
    done = session.execute(statement, execution_options=options)
    if not isinstance(done, sa.CursorResult):
        raise TypeError(f"{type(done).__name__} counts no rows")
    return done.rowcount


class Database:
    """Sessions over one engine: `with db.write() as session` and `with db.read() as session`."""

    def __init__(self, url: str) -> None:
        if url.startswith("sqlite:///"):
            path = Path(url.removeprefix("sqlite:///"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            with suppress(PermissionError):  # somebody else's, who sees to it
                path.chmod(0o600)  # what SQLite puts beside it has the same mode
        self.engine = open_engine(url)
        self._write = sessionmaker(self.engine, expire_on_commit=False)
        reading = self.engine.execution_options(reading=True)
        # One dict for all views of this process, in each one's `info`. Writers have none: what they see may be
        # rolled back.
        self._read = sessionmaker(reading, expire_on_commit=False, info={SHARED: {}})
        self.work_waits = threading.Event()
        """Set when a transaction of this process has put work for its worker into the database: it need not wait until
        it looks again."""

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: committed at the end of the block, rolled back when it raises."""
        with storable_values(), self._write.begin() as session:
            yield session
        if session.info.get(WORK):
            self.work_waits.set()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A consistent view that blocks no writer. Changes made in it are dropped; loaded rows stay readable."""
        with storable_values(), self._read() as session:
            try:
                yield session
            finally:
                session.expunge_all()  # a rollback would expire them
                session.rollback()

    def migrate(self, revision: str = HEAD) -> None:
        """Bring the tables to this version, or an empty database to an earlier one. Safe when several processes start
        at once.

        Where they are already, Alembic is not even loaded: it is a good part of a start. Raises `Conflict` for
        a database that this version cannot read, or whose rows would not fit; nothing is changed then.
        """
        found = self.revision()
        if found == revision:
            return
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["engine"] = self.engine
        known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        for wanted in (found, revision):
            if wanted is not None and wanted not in known:
                raise Conflict(
                    f"the database is at revision {wanted}; this version of osmosis supports {known[-1]} to {known[0]}",
                    hint="use the osmosis version that wrote it, or start with another data folder: "
                    "OSMOSIS_DATA_DIR=FOLDER",
                )
        command.upgrade(config, revision)

    def revision(self) -> str | None:
        """The last migration that was applied; None in an empty database."""
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()

    def close(self) -> None:
        self.engine.dispose()
