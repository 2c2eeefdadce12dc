"""Environments and wheels that were made once and are used by many runs: when each was last used, and which can go.

`<cache>/environments/<workspace>/<key>` has a marker whose time is that of its last use; `<cache>/wheels/<hash>` its
own. Whoever is about to use one holds its lock and touches the marker, so it is looked at again under the lock.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from .locks import lock_if_free

MARKER = ".osmosis-environment.json"
UNUSED_S = 14 * 24 * 3600.0


def unused(cache_dir: Path, *, before: float) -> Iterator[Path]:
    """Environments and wheels whose last use was before this time."""
    made = (folder for workspace in _folders(cache_dir / "environments") for folder in _folders(workspace))
    yield from (folder for folder in made if last_used(folder / MARKER) < before)
    yield from (folder for folder in _folders(cache_dir / "wheels") if last_used(folder) < before)


def remove(folder: Path, *, before: float) -> bool:
    """Remove one that is `unused`; False when somebody uses it now, or has meanwhile."""
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


def prune(cache_dir: Path, *, unused_s: float = UNUSED_S) -> list[str]:
    """Remove all that were not used for so many seconds; the names of what was removed."""
    before = time.time() - unused_s
    return [folder.name for folder in unused(cache_dir, before=before) if remove(folder, before=before)]


def last_used(path: Path) -> float:
    """The time of a file or folder; 0 when it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
