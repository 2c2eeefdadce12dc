"""Cached environments and wheels that nobody uses any more. The time of a marker file is that of the last use. A user
of an environment holds its lock and touches the marker, so removal checks again under the lock."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from osmosis.base.files import read_object
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import lock_if_free

MARKER = ".osmosis-environment.json"
UNUSED_S = 14 * 24 * 3600.0


def find_unused(cache_dir: Path, *, before: float) -> Iterator[Path]:
    environments = (folder for workspace in _folders(cache_dir / "environments") for folder in _folders(workspace))
    yield from (folder for folder in environments if last_used(folder / MARKER) < before)
    yield from (folder for folder in _folders(cache_dir / "wheels") if last_used(folder) < before)


def remove(folder: Path, *, before: float) -> bool:
    if folder.parent.name == "wheels":
        shutil.rmtree(folder, ignore_errors=True)
        return True
    with lock_if_free(folder.parent / ".locks" / folder.name) as ours:
        if not ours or last_used(folder / MARKER) >= before:
            return False
        # Without its marker it is no environment any more, however far the removal gets.
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return True


def prune_environments(cache_dir: Path, *, unused_s: float = UNUSED_S) -> list[str]:
    before = time.time() - unused_s
    return [folder.name for folder in find_unused(cache_dir, before=before) if remove(folder, before=before)]


def remove_folders(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def read_marker(folder: Path) -> JsonObject | None:
    marker = read_object(folder / MARKER)
    with suppress(OSError):
        os.utime(folder / MARKER)
    return marker or None


def last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
