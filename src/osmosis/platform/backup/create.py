"""Back up a platform that may be running: files are added and removed, never changed, so they are copied first, and
what came meanwhile while a transaction is open, whose rows are written then. Repositories follow as bundles."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from osmosis.base import safe_open
from osmosis.base.git import Git, GitError, sealed_environ
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform.backup.archive import (
    ArchiveWriter,
    BackupManifest,
    StoredRepository,
    add_rows,
    build_header,
    finish,
    open_snapshot,
    open_writer,
    reflect_tables,
)
from osmosis.platform.db import open_engine
from osmosis.platform.objects import open_objects
from osmosis.platform.objects.publish import STORED, is_object
from osmosis.platform.objects.store import Objects, list_files
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.vault import Vault

log = logging.getLogger(__name__)

TRIES = 3
BUNDLE_S = 3600.0
MIB = 1024 * 1024
OF_A_RUN = ("job.log", "metrics.jsonl")


@dataclass(frozen=True, slots=True)
class BackupResult:
    path: Path
    size: int
    files: int
    rows: int
    repositories: int


class _Gone(Exception): ...


def create_backup(settings: PlatformSettings, target: Path, *, with_master_key: bool = False) -> BackupResult:
    if target.exists():
        raise Conflict(f"{target} exists already", hint="give another name, or delete it first")
    if settings.database.startswith("sqlite") and not (settings.data_dir / "platform.db").is_file():
        hint = "OSMOSIS_DATA_DIR names the data folder; for PostgreSQL give --database-url"
        raise ValidationError(f"there is no platform.db in {settings.data_dir}", hint=hint)
    engine = open_engine(settings.database)
    objects = open_objects(settings)
    try:
        for number in range(TRIES):
            try:
                return _attempt(settings, objects, engine, target, with_master_key)
            except _Gone as gone:
                log.info("backup: %s was deleted meanwhile (%d of %d)", gone, number + 1, TRIES)
        raise Conflict("too much was deleted while the backup was made", hint="make it at a quieter time")
    finally:
        engine.dispose()


def _attempt(
    settings: PlatformSettings, objects: Objects, engine: sa.Engine, target: Path, with_master_key: bool
) -> BackupResult:
    vault = Vault.open(settings.data_dir, settings.master_key.get_secret_value())
    with open_writer(target, build_header(engine, vault.key_id, has_master_key=with_master_key)) as archive:
        if with_master_key:
            typed = settings.master_key.get_secret_value().encode()
            archive.add("master.key", typed or (settings.data_dir / "master.key").read_bytes())
        _add_files(settings, objects, archive)
        with open_snapshot(engine) as connection:
            paths, repositories = _needed(connection)
            _add_files(settings, objects, archive)  # what came since, for the rows that came with it
            for path in sorted(paths):
                name = f"data/{path}"
                if name not in archive.sums and path.startswith("objects/"):
                    try:
                        archive.add_file(name, objects.fetch(path))
                    except (FileNotFoundError, NotFound):
                        if not _missing_for_long(settings, path):
                            raise _Gone(path) from None
            rows = add_rows(connection, archive)
        bundled = [_add_repository(settings, archive, repository, target.parent) for repository in repositories]
        finish(archive, BackupManifest(files=dict(archive.sums), rows=rows, repositories=bundled))
        count = len(archive.sums)
    return BackupResult(target, target.stat().st_size, count, rows, len(bundled))


def _add_files(settings: PlatformSettings, objects: Objects, archive: ArchiveWriter) -> None:
    for folder in STORED if objects.elsewhere else ():
        for stored in objects.list(f"{folder}/"):
            name = f"data/{stored.key}"
            if is_object(stored.key) and name not in archive.sums:
                with suppress(NotFound):  # deleted meanwhile
                    archive.add_pieces(name, stored.size, objects.open(stored.key).pieces)
    for path in _own_files(settings):
        name = f"data/{settings.stored(path)}"
        if name not in archive.sums:
            with suppress(FileNotFoundError):  # deleted meanwhile: the rows say whether it is missed
                archive.add_file(name, path)
    most_bytes = settings.sandbox.artifacts_mb * MIB
    for run in _run_folders(settings):
        for rollout in _names(settings.runs_dir.joinpath(*run, "artifacts")):
            parents = [*run, "artifacts", rollout]
            for file, _ in safe_open.list_artifacts(settings.runs_dir, parents, most_bytes=most_bytes) or ():
                name = "/".join(["data/runs", *parents, file])
                if name in archive.sums:
                    continue
                parts = [*parents, *file.split("/")]
                if artifact := safe_open.open_artifact(settings.runs_dir, parts, most_bytes=most_bytes):
                    archive.add_pieces(name, artifact.size, artifact.pieces())


def _own_files(settings: PlatformSettings) -> Iterator[Path]:
    uploads = settings.objects_dir / "uploads"  # on their way in: whoever sends them sends them again
    for root in (settings.objects_dir, settings.models_dir):
        yield from (path for path in list_files(root) if not path.is_relative_to(uploads))
    for run in _run_folders(settings):
        paths = (settings.runs_dir.joinpath(*run, name) for name in OF_A_RUN)
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _run_folders(settings: PlatformSettings) -> Iterator[list[str]]:
    for run in _names(settings.runs_dir):
        yield [run]
        yield from ([run, name] for name in _names(settings.runs_dir / run) if name.startswith("retry-"))


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _needed(connection: sa.Connection) -> tuple[set[str], list[StoredRepository]]:
    tables = reflect_tables(connection).tables
    files: set[str] = set()
    for table, column in (("datasets", "path"), ("runs", "dataset_path")):
        if table in tables:
            paths = connection.scalars(sa.select(tables[table].c[column]).distinct())
            files.update(path for path in paths if path)
    if "runs" in tables and "environments" in tables["runs"].c:
        for mixture in connection.scalars(sa.select(tables["runs"].c.environments)):
            files.update(part["path"] for part in mixture or ())
    rows = connection.execute(sa.select(tables["repositories"])).mappings() if "repositories" in tables else ()
    return files, [StoredRepository.model_validate(dict(row)) for row in rows]


def _missing_for_long(settings: PlatformSettings, path: str) -> bool:
    """Return whether a file was lost before the backup: then its rows are kept without it."""
    engine = open_engine(settings.database)
    try:
        with open_snapshot(engine) as now:
            files, _ = _needed(now)
    finally:
        engine.dispose()
    return path in files


def _add_repository(
    settings: PlatformSettings, archive: ArchiveWriter, repository: StoredRepository, scratch: Path
) -> StoredRepository:
    folder = settings.located(repository.path)
    if not (folder / "HEAD").is_file():
        return repository.model_copy(update={"bundled": False})
    git = Git.bare(folder, sealed_environ(settings.environ), timeout_s=BUNDLE_S)
    head = git.text("symbolic-ref", "HEAD")
    if not git.run("for-each-ref", "--count=1"):
        return repository.model_copy(update={"bundled": False, "head": head})
    folder_of_bundle = Path(tempfile.mkdtemp(prefix=".osmosis-bundle-", dir=scratch))
    try:
        git.run("bundle", "create", "--quiet", str(folder_of_bundle / "bundle"), "--all")
        archive.add_file(f"bundles/{repository.id}.bundle", folder_of_bundle / "bundle")
    except GitError:
        if folder.is_dir():
            raise
        raise _Gone(repository.path) from None
    finally:
        shutil.rmtree(folder_of_bundle, ignore_errors=True)
    return repository.model_copy(update={"head": head})
