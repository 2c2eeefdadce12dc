"""The database: one sync engine, short sessions, migrations at start.

SQLite (WAL, `BEGIN IMMEDIATE` for writers, so a busy database waits instead of failing half-way) or Postgres by
URL; the code above sees no difference. Hands out sessions that commit or roll back as a whole; keeps none open
and does no network or process work inside one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from osmosis.errors import Conflict, ValidationError

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0009"
"""The newest migration; a test compares it with the files."""
BUSY_TIMEOUT_MS = 30_000
SHARED = "shared"
"""The key in `Session.info` of what the views of a process keep between them."""


def open_engine(url: str) -> sa.Engine:
    """An engine for the URL; SQLite connections are set up for many threads and processes."""
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=30)
    engine = sa.create_engine(url, pool_size=10, max_overflow=50)

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


class Database:
    """Sessions over one engine: `with db.write() as session` and `with db.read() as session`."""

    def __init__(self, url: str) -> None:
        if url.startswith("sqlite:///"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        self.engine = open_engine(url)
        self._write = sessionmaker(self.engine, expire_on_commit=False)
        reading = self.engine.execution_options(reading=True)
        # One dict for all views of this process, in each one's `info`. Writers have none: what they see may be
        # rolled back.
        self._read = sessionmaker(reading, expire_on_commit=False, info={SHARED: {}})

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: committed at the end of the block, rolled back when it raises."""
        with storable_values(), self._write.begin() as session:
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A consistent view that blocks no writer. Changes made in it are dropped; loaded rows stay readable."""
        with storable_values(), self._read() as session:
            try:
                yield session
            finally:
                session.expunge_all()  # a rollback would expire them
                session.rollback()

    def migrate(self) -> None:
        """Bring the tables to this version. Safe when several processes start at once.

        Where they are already, Alembic is not even loaded: it is a good part of a start. Raises `Conflict` for
        a database that this version cannot read, or whose rows would not fit; nothing is changed then.
        """
        found = self._version()
        if found == HEAD:
            return
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["engine"] = self.engine
        known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        if found is not None and found not in known:
            raise Conflict(
                f"the database is at revision {found}; this version of osmosis supports {known[-1]} to {known[0]}",
                hint="use the osmosis version that wrote it, or start with another data folder: "
                "OSMOSIS_DATA_DIR=FOLDER",
            )
        command.upgrade(config, "head")

    def _version(self) -> str | None:
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()

    def close(self) -> None:
        self.engine.dispose()
