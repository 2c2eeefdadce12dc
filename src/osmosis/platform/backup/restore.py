"""Restore a backup; everything is checked before anything is put in its place. A run in flight waits for a worker
again: its job belongs to the platform that was backed up, which may still be running."""

import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from osmosis.base.files import read_object, write_bytes
from osmosis.base.git import Git, sealed_environ
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import lock_if_free
from osmosis.base.processes import is_same
from osmosis.errors import Conflict, ValidationError
from osmosis.platform.backup.archive import (
    ArchiveReader,
    BackupHeader,
    BackupManifest,
    StoredRepository,
    load_pieces,
    open_reader,
    reflect_tables,
)
from osmosis.platform.db import HEAD, Database
from osmosis.platform.git import mirror
from osmosis.platform.objects import open_objects
from osmosis.platform.objects.publish import STORED, publish
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.tables import QueueState
from osmosis.platform.vault import Vault
from osmosis.records.base import utc_now
from osmosis.records.run.status import RunStatus

ANNOUNCEMENT = "platform.json"
START_LOCK = "start.lock"
HARMLESS = frozenset({"logs", "port", START_LOCK, ".start.lock", "backups"})
FETCH_S = 3600.0
OF_A_LEASE = (
    *("lease_hash", "lease_id", "lease_until", "handle", "worker", "worker_id", "secrets_taker"),
    *("ticket_hash", "ticket_until", "ticket_taker", "place"),
)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    header: BackupHeader
    data_dir: Path
    files: int
    rows: int
    repositories: int
    runs_in_flight: int
    has_key: bool
    put_aside: Path | None


def running_in(data_dir: Path) -> int | None:
    note = read_object(data_dir / ANNOUNCEMENT)
    pid = note.get("pid")
    return pid if isinstance(pid, int) and is_same(pid, str(note.get("start_token"))) else None


def restore(settings: PlatformSettings, source: Path, *, master_key: Path | None = None) -> RestoreResult:
    data_dir = settings.data_dir
    with open_reader(source) as archive, lock_if_free(data_dir / START_LOCK) as ours:
        header = archive.header
        if not ours or running_in(data_dir):
            raise Conflict(f"a platform works in {data_dir}", hint="osmosis platform stop")
        objects = open_objects(settings)
        if header.scope == "everything":
            paths = data_dir.iterdir() if data_dir.is_dir() else ()
            if names := sorted(path.name for path in paths if path.name not in HARMLESS):
                hint = "restore into an empty folder: OSMOSIS_DATA_DIR=FOLDER osmosis platform restore FILE"
                raise Conflict(f"the data folder {data_dir} is in use: it has {', '.join(names[:3])}", hint=hint)
            for folder in STORED if objects.elsewhere else ():
                if (stored := next(objects.list(f"{folder}/"), None)) is not None:
                    message = f"{settings.objects} is in use: it has {stored.key}"
                    raise Conflict(message, hint="restore into an empty prefix: OSMOSIS_OBJECTS=s3://BUCKET/PREFIX")
        with _scratch(data_dir) as scratch:
            unpacked = _unpack(archive, scratch)
            key = _key_for(settings, header, scratch, master_key)
            with _database(settings, header, scratch) as db:
                rows, in_flight = _load(db, header, unpacked)
                repositories = _unbundle(settings, unpacked)
                put_aside = _put_aside(data_dir) if settings.database.startswith("sqlite") else None
                root = unpacked.folder / "data"
                for path in sorted(root.iterdir()) if root.is_dir() else ():
                    path.rename(data_dir / path.name)
                publish(objects, data_dir, *(f"{name}/" for name in STORED))
            if key is not None:
                write_bytes(data_dir / "master.key", key, mode=0o600, durable=True)
    files = sum(name.startswith("data/") for name in unpacked.manifest.files)
    secret = settings.master_key.get_secret_value()
    has_key = bool(secret) or (data_dir / "master.key").is_file()
    has_key = has_key and Vault.open(data_dir, secret).key_id == header.key_id
    return RestoreResult(header, data_dir, files, rows, repositories, in_flight, has_key, put_aside)


@contextmanager
def _scratch(data_dir: Path) -> Iterator[Path]:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix=".restoring-", dir=data_dir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Unpacked:
    folder: Path
    manifest: BackupManifest
    pieces: list[tuple[str, Path]]


def _unpack(archive: ArchiveReader, folder: Path) -> _Unpacked:
    pieces = []
    for name, content in archive.members():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.open("xb") as file:
            for piece in content:
                file.write(piece)
        if name.startswith("database/"):
            pieces.append((target.stem.partition("-")[2], target))
    assert archive.manifest is not None
    return _Unpacked(folder, archive.manifest, sorted(pieces, key=lambda piece: piece[1].name))


def _key_for(settings: PlatformSettings, header: BackupHeader, folder: Path, key_file: Path | None) -> bytes | None:
    source = key_file or folder / "master.key"
    if not source.is_file():
        if key_file is not None:
            raise ValidationError(f"there is no master key in {key_file}", hint="--master-key FILE")
        return None
    content = source.read_bytes()
    try:
        key_id = Vault(base64.b64decode(content.strip(), validate=True)).key_id
    except ValueError:
        raise ValidationError(f"{source} holds no master key") from None
    if key_id != header.key_id:
        message = f"{source} is master key {key_id}; the secrets of this backup need {header.key_id}"
        raise ValidationError(message, hint="give the master.key of the platform that was backed up: --master-key FILE")
    return content if not settings.master_key.get_secret_value() else None


@contextmanager
def _database(settings: PlatformSettings, header: BackupHeader, folder: Path) -> Iterator[Database]:
    own = settings.database.startswith("sqlite")
    draft = folder / "platform.db"
    db = Database(f"sqlite:///{draft}" if own else settings.database)
    try:
        if not own:
            with db.engine.connect() as connection:
                if names := sa.inspect(connection).get_table_names():
                    message = f"the database is in use: it has the table {min(names)}"
                    raise Conflict(message, hint="give an empty one: --database-url URL")
        try:
            db.migrate(header.revision or HEAD)
            yield db
        except BaseException:
            if not own:  # as empty as it was
                with db.engine.begin() as connection:
                    reflect_tables(connection).drop_all(connection)
            raise
    finally:
        db.close()
    if own:
        draft.rename(settings.data_dir / "platform.db")


def _put_aside(data_dir: Path) -> Path | None:
    if not (data_dir / "platform.db").exists():
        return None
    name = f"platform-{utc_now():%Y%m%d-%H%M%S}.db"
    for suffix in ("-wal", "-shm", ""):
        if (data_dir / f"platform.db{suffix}").exists():
            (data_dir / f"platform.db{suffix}").rename(data_dir / f"{name}{suffix}")
    return data_dir / name


def _load(db: Database, header: BackupHeader, unpacked: _Unpacked) -> tuple[int, int]:
    in_flight: dict[str, JsonObject] = {}

    def released(job: JsonObject) -> JsonObject:
        if job["state"] != QueueState.HELD:
            return job
        reference = {name: job[name] for name in ("run_id", "deployment_id", "merge_id") if job.get(name)}
        in_flight[str(reference)] = reference
        return {**_without_job(job), "state": QueueState.WAITING}

    def released_before(run: JsonObject) -> JsonObject:  # of a database in which a run was its own job
        if run["status"] != RunStatus.RUNNING.value or not run.get("lease_hash"):
            return run
        in_flight[run["id"]] = {"run_id": run["id"]}
        return _without_job(run)

    pieces = ((table, path.read_bytes()) for table, path in unpacked.pieces)
    with db.engine.begin() as connection:
        rows = load_pieces(connection, pieces, {"jobs": released, "runs": released_before})
        if rows != unpacked.manifest.rows:
            raise ValidationError(f"the backup has {unpacked.manifest.rows} rows, {rows} could be read")
        logs = reflect_tables(connection).tables.get("run_logs")
        if logs is not None and in_flight:
            now = utc_now() if connection.dialect.name != "sqlite" else utc_now().replace(tzinfo=None)
            line = {"level": "warning", "step": "platform", "timestamp": now}
            line["message"] = f"the platform was restored from its backup of {header.made_at}; the run starts again"
            connection.execute(logs.insert(), [{**line, **reference} for reference in in_flight.values()])
    return rows, len(in_flight)


def _without_job(row: JsonObject) -> JsonObject:
    return {**row, **{name: None for name in OF_A_LEASE if name in row}, "starts": max(0, row["starts"] - 1)}


def _unbundle(settings: PlatformSettings, unpacked: _Unpacked) -> int:
    for repository in unpacked.manifest.repositories:
        folder = _locate_repository(unpacked.folder / "data", repository)
        mirror.prepare(folder, settings)
        git = Git.bare(folder.path, sealed_environ(settings.environ), timeout_s=FETCH_S)
        if repository.bundled:
            bundle = str(unpacked.folder / "bundles" / f"{repository.id}.bundle")
            git.run("fetch", "--quiet", "--no-write-fetch-head", "--", bundle, "+refs/*:refs/*")
        if repository.head:
            git.run("symbolic-ref", "HEAD", repository.head)
    return len(unpacked.manifest.repositories)


def _locate_repository(root: Path, repository: StoredRepository) -> mirror.RepositoryFolder:
    path = root / repository.path
    if root.resolve() not in path.resolve().parents:
        raise ValidationError(f"the backup names a repository outside of the data folder: {repository.path}")
    remote = mirror.Remote(repository.url)
    return mirror.RepositoryFolder(repository.id, repository.kind, remote, path, repository.default_branch)
