from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.git_workspace import GitWorkspace
from support.receivers import Answer, Asked, site


@pytest.fixture
def folder(tmp_path: Path) -> GitWorkspace:
    """A workspace folder without git."""
    return GitWorkspace(tmp_path / "ws", git=False)


@pytest.fixture(scope="session")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace `ws`, committed and pushed to the bare remote `owner/repo.git` beside it. Not to be written to."""
    place = tmp_path_factory.mktemp("pushed")
    workspace = GitWorkspace(place / "ws")
    workspace.commit("first")
    workspace.add_remote()
    workspace.push()
    return place


@pytest.fixture
def repo(pushed: Path, tmp_path: Path) -> GitWorkspace:
    """A copy of `pushed`, with its own remote: copying is much faster than a dozen git calls."""
    for name in ("ws", "owner"):
        shutil.copytree(pushed / name, tmp_path / name)
    workspace = GitWorkspace.__new__(GitWorkspace)
    workspace.root = tmp_path / "ws"
    config = workspace.root / ".git" / "config"
    old, new = (str(place / "owner" / "repo.git") for place in (pushed, tmp_path))
    config.write_text(config.read_text("utf-8").replace(old, new), "utf-8")
    return workspace


@contextmanager
def answering(answer: Callable[[str, str], tuple[int, object]]) -> Iterator[str]:
    """The address of a platform on loopback that says what `answer` makes of method and path: status and body."""

    def say(asked: Asked) -> Answer:
        status, said = answer(asked.method, asked.path.partition("?")[0])
        return status, {}, json.dumps(said).encode()

    with site(say) as url:
        yield url
