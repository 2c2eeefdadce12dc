"""Old environments and wheels go; what is used, being made or not ours stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from osmosis.base.environments import MARKER, prune
from osmosis.base.locks import lock_if_free

DAY_S = 24 * 3600.0


def environment(cache: Path, name: str, *, days_ago: float) -> Path:
    folder = cache / "environments" / "workspace" / name
    (folder / "bin").mkdir(parents=True)
    (folder / MARKER).touch()
    os.utime(folder / MARKER, (time.time() - days_ago * DAY_S,) * 2)
    return folder


def test_only_what_is_old_and_free_is_removed(tmp_path: Path) -> None:
    old, used, busy = (environment(tmp_path, name, days_ago=days) for name, days in (("a", 15), ("b", 1), ("c", 15)))
    making = (tmp_path / "environments" / "workspace") / ".making-d"
    making.mkdir()
    wheel = tmp_path / "wheels" / "e"
    wheel.mkdir(parents=True)
    os.utime(wheel, (0, 0))
    with lock_if_free((tmp_path / "environments" / "workspace") / ".locks" / "c") as ours:
        assert ours
        assert sorted(prune(tmp_path)) == ["a", "e"]
    assert [path.exists() for path in (old, used, busy, making, wheel)] == [False, True, True, True, False]
    assert prune(tmp_path) == ["c"]


def test_an_empty_cache(tmp_path: Path) -> None:
    assert prune(tmp_path / "none") == []
