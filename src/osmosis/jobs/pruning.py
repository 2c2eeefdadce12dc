"""Removes environments and wheels that no run has used for a long time. Never one that is being made or was used
lately, and never anything else in the cache folder.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from osmosis.base.locks import lock_if_free

UNUSED_S = 14 * 24 * 3600.0


def prune(cache_dir: Path, marker: str, *, unused_s: float = UNUSED_S) -> list[str]:
    """The names of what was removed. `marker` is the file in an environment whose time says when it was last used."""
    oldest = time.time() - unused_s
    removed = []
    environments = cache_dir / "environments"
    for folder in _folders(environments):
        with lock_if_free(environments / ".locks" / folder.name) as ours:
            if ours and _last_used(folder / marker) < oldest:
                # Without its marker it is no environment any more, however far the removal gets.
                (folder / marker).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder.name)
    for folder in _folders(cache_dir / "wheels"):
        if _last_used(folder) < oldest:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
