"""Find what is wrong with the platform in a data folder, with what to type next. Changes nothing."""

import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import sqlalchemy as sa

from osmosis._version import __version__
from osmosis.base.files import read_object
from osmosis.base.processes import find_processes, start_token
from osmosis.errors import OsmosisError
from osmosis.platform.backup.archive import open_snapshot, reflect_tables
from osmosis.platform.backup.restore import ANNOUNCEMENT, running_in
from osmosis.platform.db import HEAD, open_engine, read_revision
from osmosis.platform.objects import open_objects
from osmosis.platform.objects.parts import DATASETS
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.vault import Vault
from osmosis.records.base import Problem, Severity, utc_now
from osmosis.records.run.status import RunStatus

PRIVATE = ("master.key", "bootstrap.token", "platform.db", "platform.json")
SKEW = timedelta(minutes=2)
QUICK_BYTES = 2 * 1024**3
Tables = Mapping[str, sa.Table]
JOBS = "osmosis.jobs"


def find_problems(settings: PlatformSettings) -> list[Problem]:
    if not settings.data_dir.is_dir():
        return [_problem("no-platform", "there is no platform yet", settings.data_dir, "osmosis platform start")]
    return [*_process(settings), *_files(settings), *_objects(settings), *_database(settings)]


def _process(settings: PlatformSettings) -> Iterator[Problem]:
    note = read_object(settings.data_dir / ANNOUNCEMENT)
    if note and running_in(settings.data_dir) is None:
        message = f"platform.json names process {note.get('pid')}, which no longer runs: the platform was killed"
        yield _problem("killed", message, "platform.json", "osmosis platform start", "warning")
    elif not note:
        yield _problem("not-running", "the platform is not running", "", "osmosis platform start", "warning")
        yield from _port(settings)
    elif (version := str(note.get("version"))) != __version__:
        message = f"the platform that runs is version {version}, this is {__version__}"
        yield _problem("version", message, "", "osmosis platform stop && osmosis platform start", "warning")


def _port(settings: PlatformSettings) -> Iterator[Problem]:
    remembered = settings.data_dir / "port"
    try:
        port = int(remembered.read_text())
    except (OSError, ValueError):
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            message = f"port {port}, where it was last, cannot be used: {error.strerror}"
            fix = "end the program that has it, or: osmosis platform start --port 0"
            yield _problem("port", message, str(remembered), fix, "warning")


def _files(settings: PlatformSettings) -> Iterator[Problem]:
    folder = settings.data_dir
    if not os.access(folder, os.W_OK | os.X_OK):
        yield _problem("not-writable", "the data folder cannot be written", folder, f"chown -R $(id -un) {folder}")
    for name in PRIVATE:
        path = folder / name
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & 0o077:
            message = f"{name} can be read by other users of this machine (mode {mode:04o})"
            yield _problem("open-file", message, path, f"chmod 600 {path}")
    if (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o022:
        message = f"other users of this machine can write the data folder (mode {mode:04o})"
        yield _problem("open-folder", message, folder, f"chmod 700 {folder}")


def _objects(settings: PlatformSettings) -> Iterator[Problem]:
    try:
        objects = open_objects(settings)
        if not objects.elsewhere:
            return
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "check")
            source.write_bytes(secrets.token_bytes(64))
            key = f"objects/doctor/{secrets.token_hex(8)}"
            objects.put(key, source)
            try:
                same = b"".join(objects.open(key).pieces) == source.read_bytes()
                theirs = next(stored.changed for stored in objects.list("objects/doctor/") if stored.key == key)
            finally:
                objects.delete(key)
        if any(stored.key == key for stored in objects.list("objects/doctor/")):
            fix = "give the platform's key the right to delete"
            yield _problem("objects", "the object store does not delete what it is told to", settings.objects, fix)
    except OsmosisError as error:
        yield _problem("objects", error.message, settings.objects, error.hint or "")
        return
    if not same:
        fix = "ask whoever runs the object store"
        yield _problem("objects", "the object store returned other content than was stored", settings.objects, fix)
    if (apart := abs(theirs - utc_now().timestamp())) > SKEW.total_seconds():
        message = f"the clocks of this machine and of the object store differ by {apart:.0f} s"
        yield _problem("clock", message, settings.objects, "set the clocks: timedatectl set-ntp true on both")


def _database(settings: PlatformSettings) -> Iterator[Problem]:
    sqlite = settings.database.startswith("sqlite")
    path = settings.data_dir / "platform.db"
    if sqlite and not path.is_file():
        fix = "osmosis platform start makes one; for PostgreSQL: osmosis platform doctor --database-url URL"
        yield _problem("no-database", "there is no platform.db", path, fix)
        return
    engine = open_engine(settings.database)
    try:
        with open_snapshot(engine) as connection:
            yield from _revision(connection)
            if sqlite and path.stat().st_size < QUICK_BYTES:
                yield from _sound(connection, path)
            yield from _clock(connection, sqlite=sqlite)
            tables = reflect_tables(connection).tables
            yield from _secrets(connection, tables, settings)
            yield from _lost_files(connection, tables, settings)
            yield from _stale_jobs(connection, tables, settings)
    except sa.exc.SQLAlchemyError as error:
        words = str(getattr(error, "orig", error)).strip().splitlines()
        fix = "start the database, and check OSMOSIS_DATABASE_URL" if not sqlite else "osmosis platform restore BACKUP"
        yield _problem("database", f"the database does not answer: {words[0] if words else error}", "", fix)
    finally:
        engine.dispose()


def _revision(connection: sa.Connection) -> Iterator[Problem]:
    revision = read_revision(connection)
    if revision != HEAD:
        message = f"the database is at revision {revision}, this version of osmosis needs {HEAD}"
        fix = "osmosis platform stop && osmosis platform start upgrades an older one, and keeps its rows in backups/"
        yield _problem("revision", message, "", fix, "warning" if str(revision) < HEAD else "error")


def _sound(connection: sa.Connection, path: Path) -> Iterator[Problem]:
    lines = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA quick_check(3)")]
    if lines != ["ok"]:
        message = f"the database file is damaged: {'; '.join(lines)[:300]}"
        yield _problem("damaged", message, path, "osmosis platform stop, then osmosis platform restore BACKUP")
    if dangling := connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall():
        message = f"{len(dangling)} rows refer to rows that are not there, the first in {dangling[0][0]}"
        yield _problem("dangling", message, path, "restore a backup, or ask for help with this finding", "warning")


def _clock(connection: sa.Connection, *, sqlite: bool) -> Iterator[Problem]:
    if sqlite:
        last = connection.scalar(sa.text("SELECT max(updated_at) FROM runs"))
        if last and (behind := datetime.fromisoformat(str(last)).replace(tzinfo=timezone.utc) - utc_now()) > SKEW:
            message = f"the clock of this machine stands {behind.total_seconds():.0f} s before the last change of a run"
            yield _problem("clock", message, "", "set the clock: timedatectl set-ntp true")
        return
    theirs = connection.scalar(sa.text("SELECT clock_timestamp()"))
    if theirs is not None and (apart := abs(theirs - utc_now())) > SKEW:
        message = f"the clocks of this machine and of the database differ by {apart.total_seconds():.0f} s"
        yield _problem("clock", message, "", "set the clocks: timedatectl set-ntp true on both")


def _secrets(connection: sa.Connection, tables: Tables, settings: PlatformSettings) -> Iterator[Problem]:
    master_key = settings.master_key.get_secret_value()
    path = settings.data_dir / "master.key"
    count = dict[str, int]()
    if "secrets" in tables:
        column = tables["secrets"].c.key_id
        count = {key: number for key, number in connection.execute(sa.select(column, sa.func.count()).group_by(column))}
    if not master_key and not path.is_file():
        if count:
            message = f"there is no master key, and {sum(count.values())} secrets need one"
            yield _problem("no-key", message, path, f"put the platform's master.key back: {path}")
        return
    try:
        own = Vault.open(settings.data_dir, master_key).key_id
    except OsmosisError as error:
        yield _problem("bad-key", error.message, path, error.hint or "")
        return
    if lost := {key: number for key, number in count.items() if key != own}:
        message = f"{sum(lost.values())} secrets were sealed with another master key ({', '.join(sorted(lost))})"
        fix = "put that key back, or set the secrets again: osmosis secret set NAME"
        yield _problem("other-key", message, path, fix)


def _lost_files(connection: sa.Connection, tables: Tables, settings: PlatformSettings) -> Iterator[Problem]:
    for name in ("datasets", "repositories"):
        if name not in tables:
            continue
        stored = [path for path in connection.scalars(sa.select(tables[name].c.path)) if path]
        lost = [path for path in stored if not settings.located(path).exists()]
        if lost and name == "datasets" and settings.objects:
            lost = sorted(set(lost) - _in_store(settings))
        if lost and not (name == "repositories" and all(path.startswith("mirrors/") for path in lost)):
            message = f"the files of {len(lost)} of {len(stored)} {name} are not there: {lost[0]}"
            fix = "restore a backup, or upload and push again"
            yield _problem("lost-files", message, settings.located(lost[0]), fix)


def _in_store(settings: PlatformSettings) -> set[str]:
    try:
        return {stored.key for stored in open_objects(settings).list(DATASETS)}
    except OsmosisError:  # which is said of the store already
        return set()


def _stale_jobs(connection: sa.Connection, tables: Tables, settings: PlatformSettings) -> Iterator[Problem]:
    work = [tables[name].c for name in ("runs", "deployments", "merges") if name in tables]
    live = {
        work_id
        for columns in work
        for work_id in connection.scalars(sa.select(columns.id).where(columns.status == RunStatus.RUNNING.value))
    }
    root = f"{settings.runs_dir}{os.sep}"
    for pid, words in find_processes(JOBS):
        folder = next((word for word in words if word.startswith(root)), "")
        if folder and folder.removeprefix(root).split(os.sep)[0] not in live and start_token(pid):
            message = f"process {pid} works for a run that is over"
            yield _problem("stale-process", message, folder, f"kill {pid}", "warning")
    pending = [sa.select(sa.func.count()).where(columns.status == RunStatus.PENDING.value) for columns in work]
    waiting = sum(connection.scalar(query) or 0 for query in pending)
    if waiting and running_in(settings.data_dir) is None:
        message = f"{waiting} runs are waiting, and the platform is not running"
        yield _problem("waiting", message, "", "osmosis platform start", "warning")


def _problem(code: str, message: str, where: object, fix: str, severity: Severity = "error") -> Problem:
    return Problem(code=code, what=message, where=str(where), fix=fix, severity=severity)
