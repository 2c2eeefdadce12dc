"""A backup of a platform that goes on working: its database at one moment, and every file that this moment refers to.

Files are only ever added and removed, never changed, so they are taken first; what came meanwhile is taken once the
database is held still, and its rows are written then. Repositories follow as bundles: they lose no commit that a row
names. What can be made again (environments, checkouts, caches) is not in it, and the master key only when asked for.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from osmosis.base import artifact_files
from osmosis.base.git import Git, GitError, sealed_environ
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform.archive import table_dump
from osmosis.platform.archive.archive_file import (
    ArchiveWriter,
    BackupManifest,
    StoredRepository,
    add_rows,
    finish,
    header_of,
    writing,
)
from osmosis.platform.db import open_engine
from osmosis.platform.objects import open_objects
from osmosis.platform.objects.copies import STORED, is_object
from osmosis.platform.objects.store import Objects
from osmosis.platform.security.vault import Vault
from osmosis.platform.settings import PlatformSettings

log = logging.getLogger(__name__)

TRIES = 3
"""How often a backup is begun anew when something it needs was deleted under it."""
BUNDLE_S = 3600.0
MIB = 1024 * 1024
OF_A_RUN = ("job.log", "metrics.jsonl")
"""What is kept of a run's folder, besides its artifacts: the rest can be made again, or is in the database."""


@dataclass(frozen=True, slots=True)
class MadeBackup:
    """What a backup became."""

    path: Path
    size: int
    files: int
    rows: int
    repositories: int


class _Gone(Exception):
    """Something that the rows refer to was deleted meanwhile."""


def make(settings: PlatformSettings, target: Path, *, with_master_key: bool = False) -> MadeBackup:
    """Write the backup of a platform, whether it runs or not. Conflict for a file that is there already, and when
    things are deleted faster than they can be read; ValidationError where there is no platform."""
    if target.exists():
        raise Conflict(f"{target} exists already", hint="give another name, or delete it first")
    if settings.database.startswith("sqlite") and not (settings.data_dir / "platform.db").is_file():
        raise ValidationError(
            f"there is no platform.db in {settings.data_dir}",
            hint="OSMOSIS_DATA_DIR names the data folder; for PostgreSQL give --database-url",
        )
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
) -> MadeBackup:
    vault = Vault.open(settings.data_dir, settings.master_key.get_secret_value())
    with writing(target, header_of(engine, vault.key_id, has_master_key=with_master_key)) as archive:
        if with_master_key:
            given = settings.master_key.get_secret_value()
            archive.add("master.key", given.encode() if given else (settings.data_dir / "master.key").read_bytes())
        _add_files(settings, objects, archive)
        with table_dump.view(engine) as connection:
            wanted, repositories = _needed(connection)
            _add_files(settings, objects, archive)  # what came since, for the rows that came with it
            _add_missing(settings, objects, archive, wanted)
            rows = add_rows(connection, archive)
        bundled = [_add_repository(settings, archive, one, target.parent) for one in repositories]
        finish(archive, BackupManifest(files=dict(archive.sums), rows=rows, repositories=bundled))
        count = len(archive.sums)
    return MadeBackup(target, target.stat().st_size, count, rows, len(bundled))


# --- files -------------------------------------------------------------------------------------------------------


def _add_files(settings: PlatformSettings, objects: Objects, archive: ArchiveWriter) -> None:
    """Every file that is not in the archive yet."""
    if objects.elsewhere:
        _add_stored(objects, archive)
    for path in _own_files(settings):
        name = f"data/{settings.stored(path)}"
        if name not in archive.sums:
            with suppress(FileNotFoundError):  # deleted meanwhile: the rows say whether it is missed
                archive.add_file(name, path)
    _add_artifacts(settings, archive)


def _add_stored(objects: Objects, archive: ArchiveWriter) -> None:
    """What is in a store elsewhere, whether there is a copy here or not."""
    for folder in STORED:
        for one in objects.list(f"{folder}/"):
            name = f"data/{one.key}"
            if is_object(one.key) and name not in archive.sums:
                with suppress(NotFound):  # deleted meanwhile
                    archive.add_pieces(name, one.size, objects.open(one.key).pieces)


def _own_files(settings: PlatformSettings) -> Iterator[Path]:
    """Files that only the platform and its trainer write: datasets, uploaded runs, models, logs of jobs."""
    for root in (settings.objects_dir, settings.models_dir):
        for folder, folders, names in os.walk(root):
            if Path(folder) == root and "uploads" in folders:
                folders.remove("uploads")  # on their way in: whoever sends them sends them again
            folders.sort()
            yield from (path for name in sorted(names) if _is_whole(path := Path(folder, name)))
    for run in _run_folders(settings):
        yield from (path for name in OF_A_RUN if _is_whole(path := settings.runs_dir.joinpath(*run, name)))


def _is_whole(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and not (path.name.startswith(".") and path.name.endswith(".part"))


def _run_folders(settings: PlatformSettings) -> Iterator[list[str]]:
    """The folder of each run, and of each of its retries, as parts below the folder of runs."""
    for run in _names(settings.runs_dir):
        yield [run]
        yield from ([run, name] for name in _names(settings.runs_dir / run) if name.startswith("retry-"))


def _names(folder: Path) -> list[str]:
    """Of the folders in a folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _add_artifacts(settings: PlatformSettings, archive: ArchiveWriter) -> None:
    """What rollouts left, through the door that follows nothing and has a size."""
    most_bytes = settings.sandbox.artifacts_mb * MIB
    for run in _run_folders(settings):
        for rollout in _names(settings.runs_dir.joinpath(*run, "artifacts")):
            place = [*run, "artifacts", rollout]
            for path, _ in artifact_files.listed(settings.runs_dir, place, most_bytes=most_bytes) or ():
                name = "/".join(["data/runs", *place, path])
                if name in archive.sums:
                    continue
                parts = [*place, *path.split("/")]
                if found := artifact_files.opened(settings.runs_dir, parts, most_bytes=most_bytes):
                    archive.add_pieces(name, found.size, found.pieces())


# --- what the rows refer to --------------------------------------------------------------------------------------


def _needed(connection: sa.Connection) -> tuple[set[str], list[StoredRepository]]:
    """The files that rows refer to, below the data folder, and the repositories there are."""
    tables = table_dump.tables_of(connection).tables
    files: set[str] = set()
    for table, column in (("datasets", "path"), ("runs", "dataset_path")):
        if table in tables:
            found = connection.scalars(sa.select(tables[table].c[column]).distinct())
            files.update(path for path in found if path)
    rows = connection.execute(sa.select(tables["repositories"])).mappings() if "repositories" in tables else ()
    repositories = [StoredRepository.model_validate(dict(row)) for row in rows]
    return files, repositories


def _add_missing(settings: PlatformSettings, objects: Objects, archive: ArchiveWriter, wanted: set[str]) -> None:
    """Raises `_Gone` when a file that the rows refer to was there and is not in the archive."""
    for path in sorted(wanted):
        name = f"data/{path}"
        if name not in archive.sums and _was_ours(path):
            try:
                archive.add_file(name, objects.fetch(path))
            except (FileNotFoundError, NotFound):
                if not _missing_for_long(settings, path):
                    raise _Gone(path) from None


def _was_ours(path: str) -> bool:
    return path.startswith("objects/")


def _missing_for_long(settings: PlatformSettings, path: str) -> bool:
    """Whether a file was lost before: then no attempt will find it, and its rows are kept all the same."""
    engine = open_engine(settings.database)
    try:
        with table_dump.view(engine) as now:
            files, _ = _needed(now)
    finally:
        engine.dispose()
    return path in files


def _add_repository(
    settings: PlatformSettings, archive: ArchiveWriter, repository: StoredRepository, scratch: Path
) -> StoredRepository:
    """A bundle of every commit that a ref holds, with the hidden ones."""
    folder = settings.located(repository.path)
    if not (folder / "HEAD").is_file():
        return repository.model_copy(update={"bundled": False})
    git = Git.bare(folder, sealed_environ(settings.environ), timeout_s=BUNDLE_S)
    head = git.text("symbolic-ref", "HEAD")
    if not git.run("for-each-ref", "--count=1"):
        return repository.model_copy(update={"bundled": False, "head": head})
    made = Path(tempfile.mkdtemp(prefix=".osmosis-bundle-", dir=scratch))
    try:
        git.run("bundle", "create", "--quiet", str(made / "bundle"), "--all")
        archive.add_file(f"bundles/{repository.id}.bundle", made / "bundle")
    except GitError:
        if folder.is_dir():
            raise
        raise _Gone(repository.path) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return repository.model_copy(update={"head": head})
