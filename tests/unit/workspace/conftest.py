from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.testing.git_workspace import GitWorkspace


@pytest.fixture
def folder(tmp_path: Path) -> GitWorkspace:
    """A workspace folder without git."""
    return GitWorkspace(tmp_path / "ws", git=False)


@pytest.fixture
def repo(tmp_path: Path) -> GitWorkspace:
    """A workspace, committed and pushed to a bare remote called owner/repo."""
    workspace = GitWorkspace(tmp_path / "ws")
    workspace.commit("first")
    workspace.add_remote()
    workspace.push()
    return workspace
