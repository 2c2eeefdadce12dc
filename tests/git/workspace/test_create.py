"""Making a workspace is all or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.base.git import Git
from osmosis.errors import Conflict, NotFound, OsmosisError, ValidationError
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import Workspace, find_workspace
from osmosis.workspace.preflight import check_folder
from osmosis.workspace.templates import create_workspace
from support.git_workspace import GitWorkspace


def test_a_new_workspace_is_committed_and_in_order(tmp_path: Path) -> None:
    made = create_workspace(tmp_path / "demo", "demo", template="multiply")
    source = read_source(made.root)
    assert source is not None
    assert (source.branch, source.commit, source.dirty, source.untracked) == ("main", made.commit, [], [])
    assert check_folder(Workspace(made.root)) == []
    assert find_workspace(made.root / "data").root == made.root.resolve()


def test_without_git(tmp_path: Path) -> None:
    made = create_workspace(tmp_path / "demo", "demo", git=False)
    assert (made.git, made.commit) == (False, None)
    assert not (tmp_path / "demo" / ".git").exists()
    assert check_folder(Workspace(made.root)) == []


def test_here_keeps_what_is_there(repo: GitWorkspace) -> None:
    repo.write("README.md", "mine\n")
    repo.write("notes.txt", "not to be committed\n")
    repo.commit()
    repo.write("notes.txt", "still not\n")
    made = create_workspace(repo.root, "ws", here=True)
    assert (repo.root / "README.md").read_text() == "mine\n"
    assert (repo.root / "AGENTS.md").is_file()
    assert "README.md" not in made.files
    source = read_source(repo.root)
    assert source is not None
    assert (source.dirty, source.untracked) == (["notes.txt"], [])
    again = create_workspace(repo.root, "ws", here=True)
    assert (again.files, again.commit) == ([], None)


@pytest.mark.parametrize("name", ["Demo", "my demo", "-x", "", "a/b", "x" * 64, ".."])
def test_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValidationError, match="workspace name"):
        create_workspace(tmp_path / "demo", name)
    assert list(tmp_path.iterdir()) == []


def test_an_occupied_place(tmp_path: Path, repo: GitWorkspace) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(Conflict, match="exists and is not empty"):
        create_workspace(tmp_path / "full", "full")
    with pytest.raises(Conflict, match="is already a workspace") as caught:
        create_workspace(repo.root, "ws")
    assert caught.value.hint == "cd ws && osmosis init --here, or choose another name"
    (tmp_path / "file").touch()
    with pytest.raises(Conflict, match="is a file"):
        create_workspace(tmp_path / "file", "file")


def test_a_bare_repository_is_no_place_for_files(tmp_path: Path) -> None:
    bare = tmp_path / "owner" / "repo.git"
    bare.mkdir(parents=True)
    Git(bare).text("init", "--quiet", "--bare")
    before = sorted(bare.rglob("*"))
    for place in (bare, bare / "hooks", bare / "hooks" / "new"):
        with pytest.raises(Conflict, match="git directory"):
            create_workspace(place, "demo", here=True)
    assert sorted(bare.rglob("*")) == before


def test_a_wrong_template_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        create_workspace(tmp_path / "demo", "demo", template="nothing")
    assert not (tmp_path / "demo").exists()


def test_a_failing_commit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\necho refused by the hook >&2\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f"[core]\n\thooksPath = {hooks}\n[user]\n\tname = T\n\temail = t@t\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    with pytest.raises(OsmosisError, match="refused by the hook"):
        create_workspace(tmp_path / "demo", "demo")
    assert not (tmp_path / "demo").exists()
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.txt").write_text("mine")
    with pytest.raises(OsmosisError, match="refused by the hook"):
        create_workspace(here, "here", here=True)
    assert [p.name for p in here.iterdir()] == ["mine.txt"]
