"""What a platform no longer needs: files that no row knows any more, and what is older than the operator wants to keep.

Looks first and removes then, each thing by itself, after it has looked at it once more; a dry run only looks. Nothing
goes that a live run uses: what was used since the oldest live run began stays, and so does what is younger than an
hour, because its row may be on its way. Removes files, lines of logs and `old_rows`, never a run or its results.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import filterfalse
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base import environments
from osmosis.base.locks import lock_if_free
from osmosis.errors import Conflict
from osmosis.platform import Platform, tables
from osmosis.platform.archive.upgrade import FOLDER as BACKUPS
from osmosis.platform.services import datasets
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.run_status import RunStatus

from . import old_rows
from .stored_waste import StoredWaste
from .waste import NOBODYS, YOUNG_S, Waste, has, has_repository, import_is_open, upload_is_open

DAY_S = 24 * 3600.0
KEPT_BACKUPS = 3
"""Of those that upgrades made."""
LIVE = (RunStatus.PENDING.value, RunStatus.RUNNING.value)
LASTING = ("artifacts", "job.log", "metrics.jsonl")
"""Of a run's folder: what is shown and downloaded."""
LINES = "log lines"
ROWS = (LINES, *old_rows.KINDS)
"""Kinds whose size is a number of rows, not of bytes."""
LOCK = ".sweep.lock"
GONE = ".gone-"
SCRATCH = (GONE, ".restoring-", ".osmosis-bundle-")
"""How the names of folders begin that a killed process left."""


def sweep(platform: Platform, *, dry_run: bool = False) -> list[Waste]:
    """Remove what is not needed; what it was. Conflict while another process does."""
    with lock_if_free(platform.settings.data_dir / LOCK) as ours:
        if not ours:
            raise Conflict("another process is cleaning up at the moment", hint="wait until it is done")
        return [waste for waste in _Sweep(platform).found() if dry_run or waste.remove()]


@dataclass(frozen=True)
class _Sweep:
    """One look around."""

    platform: Platform
    now: datetime = field(default_factory=utc_now)

    @property
    def settings(self) -> PlatformSettings:
        return self.platform.settings

    def found(self) -> Iterator[Waste]:
        """Everything, kind by kind."""
        yield from self._scratch()
        yield from self._without_a_row()
        yield from self._dataset_files()
        yield from self._ended_runs()
        yield from self._logs()
        yield from self._caches()
        yield from self._backups()
        yield from self._old_rows()
        if self.platform.objects.elsewhere:
            yield from self._stored()

    # --- files that no row knows ---

    def _scratch(self) -> Iterator[Waste]:
        for path in _entries(self.settings.data_dir):
            if path.name.startswith(SCRATCH) and not _is_young(path):
                yield self._orphan("leftovers", path, "a process was ended before it could remove it", lambda: False)

    def _without_a_row(self) -> Iterator[Waste]:
        settings = self.settings
        places: tuple[tuple[str, Path, str, Callable[[Session, str], bool]], ...] = (
            ("run folders", settings.runs_dir, "its run was deleted", has(tables.Run)),
            ("models", settings.models_dir / "runs", "its run was deleted", has(tables.Run)),
            ("models", settings.models_dir / "base", "its model was deleted", has(tables.BaseModel)),
            ("uploads", settings.models_dir / "uploads", "its model was deleted", has(tables.BaseModel)),
            ("uploads", settings.objects_dir / "uploads", "its upload is over", upload_is_open),
            ("uploads", settings.objects_dir / "imports", "its upload is over", import_is_open),
            ("repositories", settings.repositories_dir, "the workspace has another repository", has_repository),
            ("repositories", settings.mirrors_dir, "the workspace has another repository", has_repository),
        )
        for kind, folder, why, has_row in places:
            for path in _entries(folder):
                if not _is_young(path) and not self._known(has_row, path.name):
                    yield self._orphan(kind, path, why, partial(self._known, has_row, path.name))

    def _known(self, has_row: Callable[[Session, str], bool], name: str) -> bool:
        with self.platform.db.read() as session:
            return has_row(session, name)

    def _orphan(self, kind: str, path: Path, why: str, is_needed: Callable[[], bool]) -> Waste:
        def remove() -> bool:
            if _is_young(path) or is_needed():
                return False
            return _remove(self.settings, path)

        return self._waste(kind, path, why, remove)

    def _dataset_files(self) -> Iterator[Waste]:
        for folder in _entries(self.settings.objects_dir / "datasets"):
            here = {self.settings.stored(path) for path in _entries(folder)}
            unused = map(self.settings.located, sorted(self._unused_files(folder.name, here)))
            for path in filterfalse(_is_young, unused):
                yield self._orphan(
                    "datasets", path, NOBODYS, partial(self._is_used, folder.name, self.settings.stored(path))
                )

    def _is_used(self, dataset_id: str, key: str) -> bool:
        return key not in self._unused_files(dataset_id, {key})

    def _unused_files(self, dataset_id: str, here: set[str]) -> set[str]:
        with self.platform.db.read() as session:
            return datasets.unused_files(session, dataset_id, here)

    # --- what is old ---

    def _ended_runs(self) -> Iterator[Waste]:
        settings = self.settings
        for run in self._over_since(settings.keep_runs_days):
            if run.kind == "training" and run.status != RunStatus.FINISHED.value:
                continue  # it may be resumed
            for work in (folder := settings.runs_dir / run.id, *folder.glob("retry-*")):
                for path in _entries(work):
                    if path.name not in LASTING and not path.name.startswith("retry-"):
                        yield self._aged("run folders", path, run, settings.keep_runs_days)
        for run in self._over_since(settings.keep_artifacts_days):
            for work in (folder := settings.runs_dir / run.id, *folder.glob("retry-*")):
                if (work / "artifacts").is_dir():
                    yield self._aged("artifacts", work / "artifacts", run, settings.keep_artifacts_days)

    def _aged(self, kind: str, path: Path, run: tables.Run, days: int | None) -> Waste:
        def remove() -> bool:
            with self.platform.db.read() as session:
                now = session.get(tables.Run, run.id)
                if now is not None and now.completed_at != run.completed_at:
                    return False  # it is retried
            return _remove(self.settings, path)

        return self._waste(kind, path, f"run {run.name} was over {days} days ago", remove)

    def _logs(self) -> Iterator[Waste]:
        days = self.settings.keep_logs_days
        for run in self._over_since(days):
            for path in (folder := self.settings.runs_dir / run.id).glob("**/job.log") if days is not None else ():
                if path.parent == folder or path.parent.name.startswith("retry-"):
                    yield self._aged("logs", path, run, days)
            with self.platform.db.read() as session:
                lines = sa.select(sa.func.count()).where(tables.RunLog.run_id == run.id)
                count = session.scalar(lines) or 0
            if count:
                why = f"run {run.name} was over {days} days ago"
                yield Waste(LINES, f"log of run {run.name}", why, count, partial(self._forget_log, run.id))
        for path in _entries(self.settings.log_file.parent):
            if path.name.startswith("worker-") and environments.last_used(path) < time.time() - 14 * DAY_S:
                remove = partial(_remove, self.settings, path)
                yield self._waste("logs", path, "its worker was silent for two weeks", remove)

    def _forget_log(self, run_id: str) -> bool:
        with self.platform.db.write() as session:
            over = sa.select(tables.Run.id).where(tables.Run.id == run_id, tables.Run.status.not_in(LIVE))
            session.execute(sa.delete(tables.RunLog).where(tables.RunLog.run_id.in_(over)))
        return True

    def _over_since(self, days: int | None) -> list[tables.Run]:
        """The runs that ended so many days ago; none when nothing goes by itself."""
        if days is None:
            return []
        before = self.now - timedelta(days=days)
        query = sa.select(tables.Run).where(tables.Run.status.not_in(LIVE), tables.Run.completed_at < before)
        with self.platform.db.read() as session:
            return list(session.scalars(query.order_by(tables.Run.completed_at)))

    # --- what can be made again ---

    def _caches(self) -> Iterator[Waste]:
        days, cache = self.settings.keep_caches_days, self.settings.cache_dir
        if days is None:
            return
        before = self._before_any_live_run(days)
        why = f"no run used it for {days} days"
        for path in environments.unused(cache, before=before):
            remove = partial(environments.remove, path, before=before)
            yield self._waste("environments", path, why, remove)
        with self.platform.db.read() as session:
            workspaces, fetched = _used_since(session, datetime.fromtimestamp(before, tz=self.now.tzinfo))
        for path in _entries(cache / "uv"):
            if path.name not in workspaces and not _is_young(path):
                yield self._orphan("caches of uv", path, why, partial(self._workspace_lives, path.name))
        for path in _entries(cache / "hub"):
            if fetched is not None and path.name not in fetched and not _is_young(path):
                yield self._orphan("fetched models", path, why, partial(self._model_is_used, before, path.name))

    def _before_any_live_run(self, days: int) -> float:
        """Whatever was used after this moment stays: a live run may use it still."""
        since = sa.func.min(sa.func.coalesce(tables.Run.started_at, tables.Run.created_at))
        with self.platform.db.read() as session:
            began = session.scalar(sa.select(since).where(tables.Run.status.in_(LIVE)))
        oldest = self.now - timedelta(days=days)
        return min(oldest, began - timedelta(minutes=1)).timestamp() if began else oldest.timestamp()

    def _workspace_lives(self, workspace_id: str) -> bool:
        live = sa.select(tables.Run.id).where(tables.Run.workspace_id == workspace_id, tables.Run.status.in_(LIVE))
        with self.platform.db.read() as session:
            return session.scalar(live.limit(1)) is not None

    def _model_is_used(self, before: float, name: str) -> bool:
        with self.platform.db.read() as session:
            _, fetched = _used_since(session, datetime.fromtimestamp(before, tz=self.now.tzinfo))
        return fetched is None or name in fetched

    # --- what is stored elsewhere, and copies of it ---

    def _stored(self) -> Iterator[Waste]:
        store = StoredWaste(self.platform)
        yield from store.without_a_row()
        yield from store.dataset_files()
        days = self.settings.keep_artifacts_days
        for run in self._over_since(days):
            yield from store.artifacts_of(run, days)
        if (days := self.settings.keep_caches_days) is not None:
            yield from store.copies(before=self._before_any_live_run(days), days=days)

    def _backups(self) -> Iterator[Waste]:
        made = sorted(_entries(self.settings.data_dir / BACKUPS), key=environments.last_used)
        for path in [path for path in made if path.name.startswith("before-")][:-KEPT_BACKUPS]:
            remove = partial(_remove, self.settings, path)
            yield self._waste("backups of upgrades", path, f"{KEPT_BACKUPS} later upgrades have theirs", remove)

    def _old_rows(self) -> Iterator[Waste]:
        for kind in old_rows.KINDS:
            with self.platform.db.read() as session:
                count = old_rows.count(session, kind, self.now)
            if count:
                yield Waste(kind, f"rows of {kind}", old_rows.WHY[kind], count, partial(self._forget_rows, kind))

    def _forget_rows(self, kind: old_rows.Kind) -> bool:
        with self.platform.db.write() as session:
            return old_rows.remove(session, kind, self.now) > 0

    def _waste(self, kind: str, path: Path, why: str, remove: Callable[[], bool]) -> Waste:
        return Waste(kind, self.settings.stored(path), why, _size_of(path), remove)


def _used_since(session: Session, moment: datetime) -> tuple[set[str], set[str] | None]:
    """The workspaces with a run that is live or began since, and the folders of hub models that such runs may use; None
    when that cannot be told."""
    recent = sa.or_(tables.Run.status.in_(LIVE), tables.Run.started_at >= moment, tables.Run.created_at >= moment)
    rows = session.execute(sa.select(tables.Run.workspace_id, tables.Run.model_path).where(recent).distinct()).all()
    fetched = {path.replace("/", "--") for _, path in rows}
    trained = any(path.startswith(PLATFORM_MODEL) for _, path in rows)
    return {workspace for workspace, _ in rows}, None if trained else fetched | {".locks"}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_young(path: Path) -> bool:
    return environments.last_used(path) > time.time() - YOUNG_S


def _size_of(path: Path) -> int:
    """Bytes on disk, of a file or of everything below a folder; nothing is followed."""
    return sum(_blocks(one) for one in (path, *_below(path)))


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
    """Out of the way at once, then away."""
    gone = settings.data_dir / f"{GONE}{secrets.token_hex(8)}"
    try:
        path.rename(gone)
    except FileNotFoundError:
        return False
    if gone.is_dir() and not gone.is_symlink():
        shutil.rmtree(gone, ignore_errors=True)
    else:
        gone.unlink(missing_ok=True)
    return True
