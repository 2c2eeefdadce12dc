"""Garbage collection of files that no row refers to, and of what is older than the retention settings; looked at once
more before it is removed. What was used since the oldest live run began stays."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from osmosis.base import installation
from osmosis.base.locks import lock_if_free
from osmosis.errors import Conflict, NotFound
from osmosis.platform import BACKUPS, Platform, tables
from osmosis.platform.background import RepeatingThread
from osmosis.platform.datasets import service as datasets
from osmosis.platform.db import changed_by, count_of
from osmosis.platform.objects.publish import MARK, is_object
from osmosis.platform.objects.store import StoredObject, list_files
from osmosis.platform.run_upload import sessions
from osmosis.platform.runs import lifecycle
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now
from osmosis.records.run.job import SyncStatus
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.status import RunStatus

log = logging.getLogger(__name__)

DAY_S = 24 * 3600.0
FIRST_SWEEP_S = 900.0
MAX_UPGRADE_BACKUPS = 3
SHOWN_FILES = ("artifacts", "job.log", "metrics.jsonl")
LOG_LINES = "log lines"
LOCK = ".sweep.lock"
REMOVED_PREFIX = ".gone-"
SCRATCH_PREFIXES = (REMOVED_PREFIX, ".restoring-", ".osmosis-bundle-")
TOKENS_FOR = timedelta(days=30)
CODES_FOR = timedelta(days=1)
EVENTS_FOR = timedelta(days=90)
OLD_ROWS: dict[str, str] = {
    "production calls": "older than they are kept, whatever their label",
    "tokens": f"expired or revoked for {TOKENS_FOR.days} days",
    "device codes": f"expired for {CODES_FOR.days} day",
    "sync events": f"older than {EVENTS_FOR.days} days, and not the last of their branch",
}
ROW_KINDS = (LOG_LINES, *OLD_ROWS)


def sweep(platform: Platform, *, dry_run: bool = False) -> list[Waste]:
    with lock_if_free(platform.settings.data_dir / LOCK) as ours:
        if not ours:
            raise Conflict("another process is cleaning up at the moment", hint="wait until it is done")
        return [waste for waste in _Sweep(platform).find() if dry_run or waste.remove()]


def sweep_daily(platform: Platform) -> RepeatingThread:
    return RepeatingThread("cleaning up", DAY_S, partial(_sweep_and_log, platform), first_s=FIRST_SWEEP_S)


def _sweep_and_log(platform: Platform) -> None:
    with contextlib.suppress(Conflict):  # another process is at it
        removed = sweep(platform)
        if removed:
            counts = Counter(waste.kind for waste in removed)
            kinds = ", ".join(f"{number} {kind}" for kind, number in counts.items())
            size = sum(waste.size for waste in removed if waste.kind not in ROW_KINDS)
            log.info("removed what is not needed any more: %s (%.1f MB)", kinds, size / 1e6)


@dataclass(frozen=True)
class _Sweep:
    platform: Platform
    now: datetime = field(default_factory=utc_now)

    @property
    def settings(self) -> PlatformSettings:
        return self.platform.settings

    def find(self) -> Iterator[Waste]:
        yield from self._scratch()
        for kind, folder, reason, check in OWNED:
            entries = _entries(self.settings.located(folder))
            yield from self._orphans(kind, entries, reason, partial(self._has_row, check))
        yield from self._dataset_files()
        yield from self._ended_runs()
        yield from self._logs()
        yield from self._caches()
        yield from self._backups()
        yield from self._old_rows()
        if self.platform.objects.elsewhere:
            yield from self._stored_without_row()
            yield from self._stored_dataset_files()
            for run in self._over_since(self.settings.keep_artifacts_days):
                yield from self._stored_artifacts(run)
            if (days := self.settings.keep_caches_days) is not None:
                yield from self._copies(before=self._before_any_live_run(days), days=days)

    # What a row says, now.

    def _has_row(self, check: HasRow, path: Path) -> bool:
        with self.platform.db.read() as session:
            return check(session, path.name)

    def _list_unused(self, dataset_id: str, keys: set[str]) -> set[str]:
        with self.platform.db.read() as session:
            return datasets.list_unused_files(session, dataset_id, keys)

    def _is_used(self, dataset_id: str, key: str) -> bool:
        return key not in self._list_unused(dataset_id, {key})

    def _is_retried(self, work: tables.Work) -> bool:
        with self.platform.db.read() as session:
            current = session.get(type(work), work.id)
            return current is not None and current.completed_at != work.completed_at

    def _waste(self, kind: str, path: Path, reason: str, remove: Callable[[], bool]) -> Waste:
        size = sum(_blocks(entry) for entry in (path, *_below(path)))
        return Waste(kind, self.settings.stored(path), reason, size, remove)

    # Files that no row refers to.

    def _orphans(
        self, kind: str, paths: Iterable[Path], reason: str, is_needed: Callable[[Path], bool]
    ) -> Iterator[Waste]:
        def remove(path: Path) -> bool:
            return not _is_young(path) and not is_needed(path) and _remove(self.settings, path)

        for path in paths:
            if not _is_young(path) and not is_needed(path):
                yield self._waste(kind, path, reason, partial(remove, path))

    def _scratch(self) -> Iterator[Waste]:
        left = [path for path in _entries(self.settings.data_dir) if path.name.startswith(SCRATCH_PREFIXES)]
        return self._orphans("leftovers", left, "a process was ended before it could remove it", lambda path: False)

    def _dataset_files(self) -> Iterator[Waste]:
        for folder in _entries(self.settings.objects_dir / "datasets"):
            keys = {self.settings.stored(path) for path in _entries(folder)}
            yield from self._orphans(
                "datasets",
                map(self.settings.located, sorted(self._list_unused(folder.name, keys))),
                UNUSED_DATASET_FILE,
                lambda path: self._is_used(path.parent.name, self.settings.stored(path)),
            )

    # What is older than the retention settings.

    def _over_since(self, days: int | None) -> list[tables.Work]:
        if days is None:
            return []
        before, over = self.now - timedelta(days=days), list[tables.Work]()
        with self.platform.db.read() as session:
            for table in tables.WORK_TABLES:
                query = sa.select(table).where(~lifecycle.is_live(table), table.completed_at < before)
                over += session.scalars(query.order_by(table.completed_at))
        return over

    def _work_folders(self, run: tables.Work) -> list[Path]:
        folder = self.settings.runs_dir / run.id
        return [folder, *folder.glob("retry-*")]

    def _ended_runs(self) -> Iterator[Waste]:
        settings = self.settings
        for run in self._over_since(settings.keep_runs_days):
            if isinstance(run, tables.Run) and run.kind == "training" and run.status != RunStatus.FINISHED.value:
                continue  # it may be resumed
            for folder in self._work_folders(run):
                for path in _entries(folder):
                    if path.name not in SHOWN_FILES and not path.name.startswith("retry-"):
                        yield self._aged("run folders", path, run, settings.keep_runs_days)
        for run in self._over_since(settings.keep_artifacts_days):
            for folder in self._work_folders(run):
                if (folder / "artifacts").is_dir():
                    yield self._aged("artifacts", folder / "artifacts", run, settings.keep_artifacts_days)

    def _aged(self, kind: str, path: Path, run: tables.Work, days: int | None) -> Waste:
        def remove() -> bool:
            return not self._is_retried(run) and _remove(self.settings, path)

        return self._waste(kind, path, f"run {run.name} was over {days} days ago", remove)

    def _logs(self) -> Iterator[Waste]:
        days = self.settings.keep_logs_days
        for run in self._over_since(days):
            for folder in self._work_folders(run):
                if (path := folder / "job.log").exists():
                    yield self._aged("logs", path, run, days)
            with self.platform.db.read() as session:
                count = count_of(session, sa.select(tables.RunLog).filter_by(**run.reference))
            if count:
                reason = f"run {run.name} was over {days} days ago"
                yield Waste(LOG_LINES, f"log of run {run.name}", reason, count, partial(self._remove_log, run))
        for path in _entries(self.settings.log_file.parent):
            if path.name.startswith("worker-") and installation.last_used(path) < time.time() - 14 * DAY_S:
                remove = partial(_remove, self.settings, path)
                yield self._waste("logs", path, "its worker was silent for two weeks", remove)

    def _remove_log(self, run: tables.Work) -> bool:
        with self.platform.db.write() as session:
            now = session.get(type(run), run.id)
            if now is not None and RunStatus(now.status).over:
                session.execute(sa.delete(tables.RunLog).filter_by(**run.reference))
        return True

    def _backups(self) -> Iterator[Waste]:
        backups = sorted(_entries(self.settings.data_dir / BACKUPS), key=installation.last_used)
        of_upgrades = [path for path in backups if path.name.startswith("before-")]
        for path in of_upgrades[:-MAX_UPGRADE_BACKUPS]:
            reason = f"{MAX_UPGRADE_BACKUPS} later upgrades have theirs"
            yield self._waste("backups of upgrades", path, reason, partial(_remove, self.settings, path))

    def _old_rows(self) -> Iterator[Waste]:
        for kind, reason in OLD_ROWS.items():
            with self.platform.db.read() as session:
                count = count_of(session, _old_rows(kind, self.now, self.settings)[1])
            if count:
                yield Waste(kind, f"rows of {kind}", reason, count, partial(self._remove_rows, kind))

    def _remove_rows(self, kind: str) -> bool:
        table, ids = _old_rows(kind, self.now, self.settings)
        with self.platform.db.write() as session:
            return changed_by(session, sa.delete(table).where(table.id.in_(ids))) > 0

    # What can be built again.

    def _caches(self) -> Iterator[Waste]:
        days, cache = self.settings.keep_caches_days, self.settings.cache_dir
        if days is None:
            return
        before = self._before_any_live_run(days)
        reason = f"no run used it for {days} days"
        for path in installation.find_unused(cache, before=before):
            yield self._waste("environments", path, reason, partial(installation.remove, path, before=before))
        with self.platform.db.read() as session:
            workspaces, models = _used_since(session, datetime.fromtimestamp(before, tz=self.now.tzinfo))
        idle = [path for path in _entries(cache / "uv") if path.name not in workspaces]
        yield from self._orphans("caches of uv", idle, reason, self._has_live_run)
        unused = [path for path in _entries(cache / "hub") if models is not None and path.name not in models]
        yield from self._orphans("fetched models", unused, reason, partial(self._is_model_used, before))

    def _before_any_live_run(self, days: int) -> float:
        moments = [self.now - timedelta(days=days)]
        with self.platform.db.read() as session:
            for table in tables.WORK_TABLES:
                since = sa.func.min(sa.func.coalesce(table.started_at, table.created_at))
                if began := session.scalar(sa.select(since).where(lifecycle.is_live(table))):
                    moments.append(began - timedelta(minutes=1))
        return min(moments).timestamp()

    def _has_live_run(self, cache: Path) -> bool:
        with self.platform.db.read() as session:
            own = [sa.select(table.id).where(lifecycle.is_live(table)) for table in tables.WORK_TABLES]
            return any(session.scalar(query.filter_by(workspace_id=cache.name)) for query in own)

    def _is_model_used(self, before: float, cache: Path) -> bool:
        with self.platform.db.read() as session:
            _, models = _used_since(session, datetime.fromtimestamp(before, tz=self.now.tzinfo))
        return models is None or cache.name in models

    # What is kept in a store elsewhere.

    def _stored_without_row(self) -> Iterator[Waste]:
        for kind, folder, reason, check in OWNED:
            for name, objects in self._group(f"{folder}/") if kind in STORED_KINDS else ():
                key = f"{folder}/{name}"
                is_needed = partial(self._has_row, check, Path(key))
                if _is_old(objects) and not is_needed():
                    remove = partial(self._remove, f"{key}/", is_needed)
                    yield Waste(STORED_KINDS[kind], key, reason, _total_size(objects), remove)

    def _stored_dataset_files(self) -> Iterator[Waste]:
        prefix = "objects/datasets/"
        for name, objects in self._group(prefix):
            sizes = {stored.key: stored.size for stored in objects if _is_old([stored])}
            for key in sorted(self._list_unused(name, set(sizes))):
                remove = partial(self._remove, key, partial(self._is_used, name, key))
                yield Waste("stored datasets", key, UNUSED_DATASET_FILE, sizes[key], remove)

    def _stored_artifacts(self, run: tables.Work) -> Iterator[Waste]:
        objects = [stored for stored in self.platform.objects.list(f"runs/{run.id}/") if MARK in stored.key]
        if objects:
            reason = f"run {run.name} was over {self.settings.keep_artifacts_days} days ago"
            remove = partial(self._remove_stored_artifacts, run, objects)
            yield Waste("stored artifacts", f"runs/{run.id}", reason, _total_size(objects), remove)

    def _copies(self, *, before: float, days: int) -> Iterator[Waste]:
        root = self.settings.data_dir
        for folder in ("objects", "models", "runs"):
            stored: dict[str, int] | None = None
            for path in list_files(root / folder):
                key = path.relative_to(root).as_posix()
                if not is_object(key) or installation.last_used(path) >= before:
                    continue
                if stored is None:
                    stored = {object_.key: object_.size for object_ in self.platform.objects.list(f"{folder}/")}
                size = path.stat().st_size
                if stored.get(key) == size:
                    reason = f"a copy of what is in the store; nobody used it for {days} days"
                    yield Waste("copies", key, reason, size, partial(self._remove_copy, path, key, before))

    def _group(self, prefix: str) -> Iterator[tuple[str, list[StoredObject]]]:
        stored = self.platform.objects.list(prefix)
        for name, objects in groupby(stored, key=lambda stored: stored.key.removeprefix(prefix).partition("/")[0]):
            yield name, list(objects)

    def _remove(self, key: str, is_needed: Callable[[], bool]) -> bool:
        if is_needed():
            return False
        self.platform.objects.delete(key)
        return True

    def _remove_stored_artifacts(self, run: tables.Work, objects: list[StoredObject]) -> bool:
        if self._is_retried(run):
            return False
        for stored in objects:
            self.platform.objects.delete(stored.key)
        return True

    def _remove_copy(self, path: Path, key: str, before: float) -> bool:
        try:
            self.platform.objects.open(key)
        except NotFound:
            return False
        if installation.last_used(path) >= before:
            return False
        path.unlink(missing_ok=True)
        return True


def _old_rows(
    kind: str, now: datetime, settings: PlatformSettings
) -> tuple[type[tables.Token | tables.DeviceCode | tables.SyncEvent | tables.ProductionCall], sa.Select[str]]:
    """Return table and ids; of events not each branch's newest success, which says where the branch is."""
    if kind == "device codes":
        return tables.DeviceCode, sa.select(tables.DeviceCode.id).where(tables.DeviceCode.expires_at < now - CODES_FOR)
    if kind == "production calls":
        call, days = tables.ProductionCall, settings.keep_calls_days
        is_old = sa.false() if days is None else call.created_at < now - timedelta(days=days)
        return call, sa.select(call.id).where(is_old)
    if kind == "tokens":
        token, child, before = tables.Token, aliased(tables.Token), now - TOKENS_FOR
        return token, sa.select(token.id).where(
            sa.or_(token.expires_at < before, token.revoked_at < before),
            ~sa.exists().where(child.parent_id == token.id),
            ~sa.exists().where(tables.Worker.token_id == token.id),
        )
    event, later = tables.SyncEvent, aliased(tables.SyncEvent)
    success = SyncStatus.SUCCESS.value
    newer = sa.exists().where(
        later.repository_id == event.repository_id,
        later.branch == event.branch,
        later.status == success,
        later.finished_at > event.finished_at,
    )
    old = event.created_at < now - EVENTS_FOR
    return event, sa.select(event.id).where(old, sa.or_(event.status != success, newer))


def _used_since(session: Session, moment: datetime) -> tuple[set[str], set[str] | None]:
    """Return workspaces of live or newer runs, and the folders of hub models they may use (None: unknown)."""
    workspaces, paths = set[str](), set[str]()
    for table in tables.WORK_TABLES:
        recent = sa.or_(lifecycle.is_live(table), table.started_at >= moment, table.created_at >= moment)
        for work in session.scalars(sa.select(table).where(recent)):
            workspaces.add(work.workspace_id)
            paths.add(work.model_path if isinstance(work, tables.Run) else PLATFORM_MODEL)
    is_trained = any(path.startswith(PLATFORM_MODEL) for path in paths)
    return workspaces, None if is_trained else {path.replace("/", "--") for path in paths} | {".locks"}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_young(path: Path) -> bool:
    return installation.last_used(path) > time.time() - YOUNG_S


def _below(path: Path) -> Iterable[Path]:
    if path.is_dir() and not path.is_symlink():
        for folder, folders, names in os.walk(path):
            yield from (Path(folder, name) for name in (*folders, *names))


def _blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _remove(settings: PlatformSettings, path: Path) -> bool:
    removed = settings.data_dir / f"{REMOVED_PREFIX}{secrets.token_hex(8)}"
    try:
        path.rename(removed)
    except FileNotFoundError:
        return False
    if removed.is_dir() and not removed.is_symlink():
        shutil.rmtree(removed, ignore_errors=True)
    else:
        removed.unlink(missing_ok=True)
    return True


YOUNG_S = 3600.0  # Seconds: what changed later than that stays, because its row may be on its way
UNUSED_DATASET_FILE = "neither its dataset nor a run refers to it"
HasRow = Callable[[Session, str], bool]


def has_work(session: Session, name: str) -> bool:
    return lifecycle.find_work(session, name) is not None


def has_model(session: Session, name: str) -> bool:
    return session.get(tables.BaseModel, name) is not None


def has_repository(session: Session, name: str) -> bool:
    return session.get(tables.Repository, name.partition(".")[0]) is not None


def upload_is_open(session: Session, name: str) -> bool:
    upload = session.get(tables.Upload, name)
    return upload is not None and upload.status in ("open", "processing")


def import_is_open(session: Session, name: str) -> bool:
    row = session.get(tables.Import, name)
    return row is not None and (row.status == sessions.UPLOADING or row.run_id is not None)


OWNED: tuple[tuple[str, str, str, HasRow], ...] = (
    ("run folders", "runs", "its run was deleted", has_work),
    ("models", "models/runs", "its run was deleted", has_work),
    ("models", "models/base", "its model was deleted", has_model),
    ("uploads", "models/uploads", "its model was deleted", has_model),
    ("uploads", "objects/uploads", "its upload is over", upload_is_open),
    ("uploads", "objects/imports", "its upload is over", import_is_open),
    ("repositories", "repositories", "the workspace has another repository", has_repository),
    ("repositories", "mirrors", "the workspace has another repository", has_repository),
)
"""Folders whose entries belong to a row: what they hold, where, why an entry would go, and whether it has its row."""
STORED_KINDS = {"run folders": "stored artifacts", "models": "stored models", "uploads": "stored uploads"}


@dataclass(frozen=True, slots=True)
class Waste:
    kind: str
    what: str
    why: str
    size: int
    remove: Callable[[], bool] = field(repr=False, compare=False)


def _is_old(objects: list[StoredObject]) -> bool:
    return max(stored.changed for stored in objects) < time.time() - YOUNG_S


def _total_size(objects: list[StoredObject]) -> int:
    return sum(stored.size for stored in objects)
