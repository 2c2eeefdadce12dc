"""Finding a workspace and the things in it, and what is said when they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.errors import NotFound, ValidationError, WorkspaceRequired
from osmosis.workspace.layout import Workspace, check_rollout_name, find_workspace, pick_config, pick_rollout
from osmosis.workspace.preflight import check_folder
from support.git_workspace import GitWorkspace


def test_found_from_any_depth(folder: GitWorkspace) -> None:
    assert find_workspace(folder.root).root == folder.root.resolve()
    assert find_workspace(folder.root / "rollouts" / "multiply").root == folder.root.resolve()


def test_outside_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceRequired) as caught:
        find_workspace(tmp_path)
    assert "osmosis init" in (caught.value.hint or "")


def test_right_above_a_workspace_the_way_into_it_is_named(folder: GitWorkspace) -> None:
    with pytest.raises(WorkspaceRequired) as caught:
        find_workspace(folder.root.parent)
    assert caught.value.hint == "cd ws"


def test_the_top_of_a_repository_ends_the_search(folder: GitWorkspace) -> None:
    inner = folder.root / "rollouts" / "multiply" / "vendored"
    (inner / ".git").mkdir(parents=True)
    with pytest.raises(WorkspaceRequired):
        find_workspace(inner)


def test_a_damaged_workspace_is_still_found(repo: GitWorkspace) -> None:
    for path in (repo.root / "configs").rglob("*.toml"):
        path.unlink()
    for name in ("configs/eval", "configs/training", "configs"):
        (repo.root / name).rmdir()
    workspace = find_workspace(repo.root)
    missing = [p.where for p in check_folder(workspace) if p.code == "missing-folder"]
    assert missing == ["configs/eval", "configs/training"]


def test_what_is_missing_is_named_with_its_fix(folder: GitWorkspace) -> None:
    (folder.root / "data").rmdir()
    (folder.root / "rollouts" / "bare").mkdir()
    found = {(p.code, p.where, p.severity) for p in check_folder(Workspace(folder.root))}
    assert ("missing-folder", "data", "error") in found
    assert ("missing-file", "AGENTS.md", "warning") in found
    assert ("no-entrypoint", "rollouts/bare", "warning") in found
    assert ("no-pyproject", "rollouts/bare", "warning") in found


def test_a_file_in_place_of_a_folder(folder: GitWorkspace) -> None:
    (folder.root / "data").rmdir()
    folder.write("data", "not a folder")
    assert "data/ is a file, not a folder" in [p.what for p in check_folder(Workspace(folder.root))]


def test_one_rollout_needs_no_name(folder: GitWorkspace) -> None:
    workspace = Workspace(folder.root)
    assert pick_rollout(workspace, None).name == "multiply"
    assert pick_config(workspace, "eval", None).name == "multiply.toml"
    folder.write("rollouts/second/main.py", "")
    with pytest.raises(ValidationError) as caught:
        pick_rollout(workspace, None)
    assert caught.value.hint == "one of: multiply, second"
    with pytest.raises(NotFound) as missing:
        pick_rollout(workspace, "multiplyy")
    assert missing.value.hint == "did you mean multiply?"


def test_no_rollout_and_no_config_say_what_makes_one(tmp_path: Path) -> None:
    for name in ("rollouts", "configs"):
        (tmp_path / name).mkdir()
    workspace = Workspace(tmp_path)
    with pytest.raises(NotFound, match="no rollouts yet"):
        pick_rollout(workspace, None)
    with pytest.raises(NotFound, match=r"no config in configs/eval/"):
        pick_config(workspace, "eval", None)


def test_a_dataset_is_found_by_its_stem(folder: GitWorkspace) -> None:
    folder.write("data/multiply.csv", "user_prompt,ground_truth\n")
    folder.write("data/notes.txt", "")
    workspace = Workspace(folder.root)
    assert workspace.local_dataset("multiply") == folder.root / "data" / "multiply.csv"
    assert workspace.local_dataset("notes") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Multiply", "osmosis rollout new multiply"),
        ("my rollout", "osmosis rollout new my-rollout"),
        ("9lives", "osmosis rollout new lives"),
        ("../other", "osmosis rollout new other"),
        ("", "my-rollout is one"),
        ("default", "choose another name, such as my-rollout"),
        ("a" * 65, "osmosis rollout new " + "a" * 64),
    ],
)
def test_names_of_rollouts(name: str, hint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        check_rollout_name(name)
    assert caught.value.hint == hint
