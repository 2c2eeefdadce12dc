"""What changed between two commits: bounded, of the folders asked for, by nothing that the repository chose."""

from __future__ import annotations

from pathlib import Path

from osmosis.base.git import Git
from osmosis.viewer.diff import LARGEST_FILE, MOST_LINES, commit_diff, has_commit, split_files
from support.git_workspace import GitWorkspace

FOLDERS = ["rollouts/multiply", "configs"]


def test_the_files_of_the_folders_are_shown_and_the_others_named(tmp_path: Path) -> None:
    made = GitWorkspace(tmp_path)
    before = made.commit()
    made.write("rollouts/multiply/main.py", "print('<b>')\n")
    made.write("rollouts/multiply/näme.py", "x = 1\n")
    made.write("rollouts/multiply/large.txt", "x" * (LARGEST_FILE + 1))
    made.write("rollouts/multiply/long.txt", "x\n" * (MOST_LINES + 1))
    made.write("rollouts/other/main.py", "pass\n")
    (tmp_path / "configs" / "eval" / "blob.bin").write_bytes(b"\0\1")
    after = made.commit()
    for git in (Git(tmp_path), Git(tmp_path / "data"), Git.bare(tmp_path / ".git", made_environ())):
        assert has_commit(git, before)
        found = commit_diff(git, before, after, FOLDERS)
        files = {file.name: file for file in split_files(found.text)}
        assert set(files) == {"rollouts/multiply/main.py", "rollouts/multiply/näme.py"}
        assert files["rollouts/multiply/main.py"].added == 1
        assert set(found.left_out) == {
            "configs/eval/blob.bin", "rollouts/multiply/large.txt", "rollouts/multiply/long.txt"}  # fmt: skip
        assert list(found.elsewhere) == ["rollouts/other/main.py"]
    assert "rollouts/other/main.py" in commit_diff(Git(tmp_path), before, after, []).text
    nested = commit_diff(Git(tmp_path), before, after, ["multiply"])
    assert "näme.py" in nested.text, "a workspace may be a folder of the repository"


def made_environ() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin"}


def test_a_repository_starts_no_program_of_its_choice(tmp_path: Path) -> None:
    made = GitWorkspace(tmp_path)
    made.write(".gitattributes", "*.py diff=own\n")
    mark = tmp_path.parent / "ran"
    for key in ("diff.own.textconv", "diff.external", "diff.own.command"):
        made.git("config", key, f"touch {mark}")
    before = made.commit()
    made.write("rollouts/multiply/main.py", "pass\n")
    after = made.commit()
    assert "+pass" in commit_diff(Git(tmp_path), before, after, FOLDERS).text
    assert not mark.exists()


def test_what_is_no_commit_is_not_asked_for(tmp_path: Path) -> None:
    made = GitWorkspace(tmp_path)
    made.commit()
    assert not has_commit(Git(tmp_path), "--help")
    assert not has_commit(Git(tmp_path), "0" * 40)
    assert not has_commit(Git(tmp_path.parent), "0" * 40)
