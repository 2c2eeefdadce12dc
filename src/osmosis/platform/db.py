"""The database: SQLite (WAL, `BEGIN IMMEDIATE`) or Postgres by URL. No session is open during network work."""

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

from osmosis.errors import Conflict, PlatformError, ValidationError

MIGRATIONS = Path(__file__).parent / "migrations"
RELEASED = "0026"  # The migration of 1.0.0; none between the first one and this was released
HEAD = "0035"
BUSY_TIMEOUT_MS = 30_000
LIMIT_S = 20.0
CONNECT_S = 5
RETRY_AFTER_S = 5
SHARED = "shared"
WORK = "work"


class DatabaseUnavailable(PlatformError):
    code = "DATABASE_UNAVAILABLE"
    http_status = 503


def find_unavailable(error: BaseException) -> DatabaseUnavailable | None:
    """Return the error to show if the database is down, frozen or too busy; None for another problem."""
    waited = isinstance(error, sa.exc.TimeoutError)  # for a connection of the pool
    orig = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    is_locked = isinstance(error, sa.exc.OperationalError) and "database is locked" in str(orig)
    is_gone = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError) and hasattr(orig, "sqlstate")
    if not (waited or is_locked or is_gone):
        return None
    hint = "try again; an operator runs: osmosis doctor --platform"
    return DatabaseUnavailable("the platform's database does not answer", hint=hint, retry_after=RETRY_AFTER_S)


def open_engine(url: str, limit_s: float = LIMIT_S) -> sa.Engine:
    if not url.startswith("sqlite"):
        return _open_postgres(url, limit_s)
    engine = sa.create_engine(url, pool_size=60, max_overflow=0, json_deserializer=_read_json)

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, see below
        for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _open_postgres(url: str, limit_s: float) -> sa.Engine:
    import psycopg  # an extra

    class LimitedConnection(psycopg.Connection[Any]):
        """The server ends a statement that is slow; this ends one whose server is frozen, and the connection."""

        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            try:
                return super().wait(gen, *args, **{**options, "timeout": limit_s + 1})
            except psycopg.OperationalError:
                if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    self.pgconn.finish()
                raise

    options: dict[str, Any] = {"pool_pre_ping": True, "json_deserializer": _read_json}
    if limit_s:
        statements = f"-c statement_timeout={int(limit_s * 1000)}"
        options["connect_args"] = {"connect_timeout": CONNECT_S, "options": statements}
        options["pool_timeout"] = limit_s
    engine = sa.create_engine(url, pool_size=10, max_overflow=30, **options)
    if limit_s:

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: object, _record: object, args: Any, options: Any) -> object:
            return LimitedConnection.connect(*args, **options)

    return engine


def _read_json(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


@contextmanager
def storable_values() -> Iterator[None]:
    """Raise ValidationError for a value that cannot be stored: beyond 64 bits, a lone surrogate, a NUL."""
    try:
        yield
    except (OverflowError, UnicodeEncodeError, sa.exc.DataError) as error:
        raise ValidationError(f"a value cannot be stored: {_explain_error(error)}") from error


def _explain_error(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "a number does not fit 64 bits"
    if isinstance(error, UnicodeEncodeError):
        return "text holds half a character (a lone surrogate)"
    return str(getattr(error, "orig", error)).split("\n")[0][:200]


def count_of(session: Session, query: sa.Select[Any]) -> int:
    counting = query.order_by(None).with_only_columns(sa.func.count(), maintain_column_froms=True)
    return session.scalar(counting) or 0


def changed_by(session: Session, statement: sa.Update | sa.Delete, **options: bool) -> int:
    done = session.execute(statement, execution_options=options)
    if not isinstance(done, sa.CursorResult):
        raise TypeError(f"{type(done).__name__} counts no rows")
    return done.rowcount


def read_revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def take_turn(session: Session, subject: str) -> None:
    """Wait until no other transaction of this turn is open: on PostgreSQL by a lock, SQLite has one writer anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(subject, 0))))


class Database:
    def __init__(self, url: str, limit_s: float = LIMIT_S) -> None:
        if url.startswith("sqlite:///"):
            path = Path(url.removeprefix("sqlite:///"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            with suppress(PermissionError):  # somebody else's, who sees to it
                path.chmod(0o600)  # what SQLite puts beside it has the same mode
        self._url = url
        self.engine = open_engine(url, limit_s)
        self._write = sessionmaker(self.engine, expire_on_commit=False)
        reading = self.engine.execution_options(reading=True)
        # One dict for all views of this process, in each one's `info`. Writers have none: what they see may be
        # rolled back.
        self._read = sessionmaker(reading, expire_on_commit=False, info={SHARED: {}})
        self.work_waits = threading.Event()
        """Set when a transaction of this process has queued work: its worker need not wait for its next poll."""

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def write(self) -> Iterator[Session]:
        with storable_values(), self._write.begin() as session:
            yield session
        if session.info.get(WORK):
            self.work_waits.set()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a consistent view that blocks no writer. Changes in it are dropped; loaded rows stay readable."""
        with storable_values(), self._read() as session:
            yield session

    def migrate(self, revision: str = HEAD) -> None:
        """Bring the tables to this revision; safe when several processes start at once. Raise Conflict, and change
        nothing, for a database that this version cannot read or whose rows would not fit."""
        current = self.revision()
        if current == revision:
            return
        from alembic import command  # a good part of a start, which most starts do without
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        engine = self.engine if self.is_sqlite else open_engine(self._url, 0.0)
        config.attributes["engine"] = engine
        revisions = sorted(script.revision for script in ScriptDirectory.from_config(config).walk_revisions())
        for candidate in (current, revision):
            if candidate is None or candidate in revisions:
                continue
            hint = "use the osmosis version that wrote it, or start with another data folder: OSMOSIS_DATA_DIR=FOLDER"
            if revisions[0] < candidate < RELEASED:
                hint = "start osmosis 1.0.0 once with this data folder, then this version"
            supported = f"this version of osmosis takes up {', '.join(revisions)}"
            raise Conflict(f"the database is at revision {candidate}; {supported}", hint=hint)
        try:
            command.upgrade(config, revision)
        finally:
            if engine is not self.engine:
                engine.dispose()

    def revision(self) -> str | None:
        with self.engine.connect() as connection:
            return read_revision(connection)

    def close(self) -> None:
        self.engine.dispose()
