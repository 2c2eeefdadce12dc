"""What is not needed in an object store elsewhere, and working copies in the data folder that nobody used for long.

A copy goes only when the store has the object. Looks at the store once for each kind; removes nothing by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from sqlalchemy.orm import Session

from osmosis.base import environments
from osmosis.errors import NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.objects.copies import MARK, is_object
from osmosis.platform.objects.local_folder import files_below
from osmosis.platform.objects.store import StoredObject
from osmosis.platform.services import datasets

from .waste import NOBODYS, YOUNG_S, Waste, has, import_is_open, upload_is_open


@dataclass(frozen=True)
class StoredWaste:
    """One look at the store of a platform."""

    platform: Platform

    def without_a_row(self) -> Iterator[Waste]:
        places: tuple[tuple[str, str, str, Callable[[Session, str], bool]], ...] = (
            ("stored artifacts", "runs/", "its run was deleted", has(tables.Run)),
            ("stored models", "models/runs/", "its run was deleted", has(tables.Run)),
            ("stored models", "models/base/", "its model was deleted", has(tables.BaseModel)),
            ("stored uploads", "models/uploads/", "its model was deleted", has(tables.BaseModel)),
            ("stored uploads", "objects/uploads/", "its upload is over", upload_is_open),
            ("stored uploads", "objects/imports/", "its upload is over", import_is_open),
        )
        for kind, before, why, has_row in places:
            for name, found in self._by_folder(before):
                if self._old(found) and not self._known(has_row, name):
                    remove = partial(self._forget, f"{before}{name}/", partial(self._known, has_row, name))
                    yield Waste(kind, f"{before}{name}", why, _bytes(found), remove)

    def dataset_files(self) -> Iterator[Waste]:
        before = "objects/datasets/"
        for name, found in self._by_folder(before):
            sizes = {one.key: one.size for one in found if self._old([one])}
            for key in sorted(self._unused(name, set(sizes))):
                remove = partial(self._forget, key, partial(self._is_used, name, key))
                yield Waste("stored datasets", key, NOBODYS, sizes[key], remove)

    def artifacts_of(self, run: tables.Run, days: int | None) -> Iterator[Waste]:
        """Of a run that was over so long ago."""
        found = [one for one in self.platform.objects.list(f"runs/{run.id}/") if MARK in one.key]
        if found:
            why = f"run {run.name} was over {days} days ago"
            yield Waste("stored artifacts", f"runs/{run.id}", why, _bytes(found), partial(self._delete, run, found))

    def copies(self, *, before: float, days: int) -> Iterator[Waste]:
        """Files of the data folder that are in the store and that nobody used since."""
        root = self.platform.settings.data_dir
        for folder in ("objects", "models", "runs"):
            stored: dict[str, int] | None = None
            for path in files_below(root / folder):
                key = path.relative_to(root).as_posix()
                if not is_object(key) or environments.last_used(path) >= before:
                    continue
                if stored is None:
                    stored = {one.key: one.size for one in self.platform.objects.list(f"{folder}/")}
                size = path.stat().st_size
                if stored.get(key) == size:
                    why = f"a copy of what is in the store; nobody used it for {days} days"
                    yield Waste("copies", key, why, size, partial(self._drop, path, key, before))

    def _by_folder(self, before: str) -> Iterator[tuple[str, list[StoredObject]]]:
        listed = self.platform.objects.list(before)
        for name, found in groupby(listed, key=lambda one: one.key.removeprefix(before).partition("/")[0]):
            yield name, list(found)

    def _old(self, found: list[StoredObject]) -> bool:
        return max(one.changed for one in found) < time.time() - YOUNG_S

    def _known(self, has_row: Callable[[Session, str], bool], name: str) -> bool:
        with self.platform.db.read() as session:
            return has_row(session, name)

    def _unused(self, dataset_id: str, here: set[str]) -> set[str]:
        with self.platform.db.read() as session:
            return datasets.unused_files(session, dataset_id, here)

    def _is_used(self, dataset_id: str, key: str) -> bool:
        return key not in self._unused(dataset_id, {key})

    def _forget(self, key: str, is_needed: Callable[[], bool]) -> bool:
        if is_needed():
            return False
        self.platform.objects.delete(key)
        return True

    def _delete(self, run: tables.Run, found: list[StoredObject]) -> bool:
        with self.platform.db.read() as session:
            now = session.get(tables.Run, run.id)
            if now is not None and now.completed_at != run.completed_at:
                return False  # it is retried
        for one in found:
            self.platform.objects.delete(one.key)
        return True

    def _drop(self, path: Path, key: str, before: float) -> bool:
        try:
            self.platform.objects.open(key)
        except NotFound:
            return False
        if environments.last_used(path) >= before:
            return False
        path.unlink(missing_ok=True)
        return True


def _bytes(found: list[StoredObject]) -> int:
    return sum(one.size for one in found)
