"""Levels that work on this machine; a test that needs another one is skipped, and says why."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osmosis.sandbox import Level, probe

LEVELS = {
    "level-0": Level.NONE,
    "landlock": Level.LANDLOCK,
    "own-namespaces": Level.NAMESPACES,
    "bubblewrap": Level.NAMESPACES,
}


def use_program(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let this process make namespaces with bubblewrap, or without it."""
    if name == "own-namespaces":
        for program in ("slirp4netns", "pasta"):
            if path := shutil.which(program):
                (folder / program).symlink_to(path)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(folder))
            probe.cache_clear()
            probe()


@pytest.fixture(params=list(LEVELS))
def level(
    request: pytest.FixtureRequest,
    need_level: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Level]:
    chosen = LEVELS[request.param]
    use_program(request.param, monkeypatch, tmp_path_factory.mktemp("programs"))
    need_level(chosen)
    yield chosen
    probe.cache_clear()


@pytest.fixture(params=["own-namespaces", "bubblewrap"])
def level1(
    request: pytest.FixtureRequest,
    need_level: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Level]:
    use_program(request.param, monkeypatch, tmp_path_factory.mktemp("programs"))
    need_level(Level.NAMESPACES)
    yield Level.NAMESPACES
    probe.cache_clear()
