"""Git facts, read from real repositories in every state a person gets into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from osmosis.base.git import Git, GitError, GitMissing
from osmosis.records.run.source import Source
from osmosis.workspace.git import find_pinned_commit, make_snapshot, read_rollout_files, read_source
from support.git_workspace import GitWorkspace


def read(workspace: GitWorkspace) -> Source:
    source = read_source(workspace.root)
    assert source is not None
    return source


def test_no_repository_is_no_source(folder: GitWorkspace) -> None:
    assert read_source(folder.root) is None


def test_before_the_first_commit(tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path / "ws")
    source = read(workspace)
    assert (source.commit, source.branch, source.detached) == (None, "main", False)
    assert "rollouts/multiply/main.py" in source.untracked


def test_clean_and_pushed(repo: GitWorkspace) -> None:
    source = read(repo)
    assert source.commit == repo.git("rev-parse", "HEAD")
    assert (source.branch, source.upstream, source.ahead, source.behind) == ("main", "origin/main", 0, 0)
    assert (source.dirty, source.untracked) == ([], [])
    assert source.identity == "owner/repo"


def test_changed_staged_renamed_deleted_and_new_files(repo: GitWorkspace) -> None:
    repo.write("rollouts/multiply/old name.py", "x = 1\n" * 20)
    repo.write("data/gone.jsonl", "{}\n")
    repo.commit()
    repo.write("rollouts/multiply/main.py", "changed\n")
    repo.write("configs/eval/multiply.toml", "staged\n")
    repo.git("add", "configs")
    repo.git("mv", "rollouts/multiply/old name.py", "rollouts/multiply/neu ä.py")
    (repo.root / "data/gone.jsonl").unlink()
    repo.write("rollouts/multiply/new\tfile.py", "")
    source = read(repo)
    assert set(source.dirty) == {
        "rollouts/multiply/main.py",
        "configs/eval/multiply.toml",
        "rollouts/multiply/neu ä.py",
        "rollouts/multiply/old name.py",
        "data/gone.jsonl",
    }
    assert source.untracked == ["rollouts/multiply/new\tfile.py"]
    assert source.ahead == 1


def test_ignored_files_are_no_change(repo: GitWorkspace) -> None:
    repo.write(".env", "SECRET=1\n")
    repo.write(".osmosis/runs/x/run.json", "{}")
    source = read(repo)
    assert (source.dirty, source.untracked) == ([], [])


def test_a_merge_conflict_is_a_change(repo: GitWorkspace) -> None:
    repo.git("switch", "--quiet", "-c", "other")
    repo.write("rollouts/multiply/main.py", "theirs\n")
    repo.commit()
    repo.git("switch", "--quiet", "main")
    repo.write("rollouts/multiply/main.py", "ours\n")
    repo.commit()
    with pytest.raises(GitError):
        repo.git("merge", "--quiet", "other")
    assert read(repo).dirty == ["rollouts/multiply/main.py"]


def test_behind_and_ahead(repo: GitWorkspace, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Git(tmp_path).text("clone", "--quiet", repo.git("remote", "get-url", "origin"), str(other))
    colleague = GitWorkspace.__new__(GitWorkspace)
    colleague.root = other
    for key, value in (("user.name", "Other"), ("user.email", "other@localhost")):
        colleague.git("config", key, value)
    colleague.write("data/more.jsonl", "{}\n")
    colleague.commit()
    colleague.push()
    repo.write("data/mine.jsonl", "{}\n")
    repo.commit()
    repo.git("fetch", "--quiet")
    source = read(repo)
    assert (source.ahead, source.behind) == (1, 1)


def test_detached_head(repo: GitWorkspace) -> None:
    repo.git("checkout", "--quiet", "--detach")
    source = read(repo)
    assert (source.branch, source.detached, source.upstream) == (None, True, None)


def test_what_a_rebase_left_unfinished(repo: GitWorkspace) -> None:
    for branch, text in (("one", "1\n"), ("two", "2\n")):
        repo.git("checkout", "--quiet", "-B", branch, "origin/main")
        repo.write("data/a.jsonl", text)
        repo.commit()
    with pytest.raises(GitError):
        repo.git("rebase", "one")
    source = read(repo)
    assert (source.operation, source.conflicts, source.dirty) == ("rebase", ["data/a.jsonl"], ["data/a.jsonl"])
    repo.git("rebase", "--abort")
    assert (read(repo).operation, read(repo).conflicts) == (None, [])


def test_a_merge_with_conflicts(repo: GitWorkspace) -> None:
    for branch, text in (("one", "1\n"), ("two", "2\n")):
        repo.git("checkout", "--quiet", "-B", branch, "origin/main")
        repo.write("data/a.jsonl", text)
        repo.commit()
    with pytest.raises(GitError):
        repo.git("merge", "one")
    assert (read(repo).operation, read(repo).conflicts) == ("merge", ["data/a.jsonl"])


def test_a_name_that_is_no_utf8_can_be_shown(repo: GitWorkspace) -> None:
    (repo.root / os.fsdecode(b"data/caf\xe9.txt")).write_text("x")
    source = read(repo)
    assert source.untracked == ["data/caf\ufffd.txt"]
    assert "caf" in source.model_dump_json()


def test_no_remote(tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path / "ws")
    workspace.commit()
    source = read(workspace)
    assert (source.remote_url, source.identity, source.upstream) == (None, None, None)


def test_the_remote_is_shown_without_credentials(repo: GitWorkspace) -> None:
    repo.git("remote", "set-url", "origin", "https://me:hunter2@host.example/o/r.git")
    source = read(repo)
    assert (source.remote_url, source.identity) == ("https://host.example/o/r.git", "o/r")
    assert "hunter2" not in source.model_dump_json()


def test_a_remote_that_is_no_url_keeps_its_secret(repo: GitWorkspace) -> None:
    repo.git("remote", "set-url", "origin", "ftp://me:hunter2@host.example/o/r.git")
    source = read(repo)
    assert (source.remote_url, source.identity) == ("ftp://host.example/o/r.git", None)


def test_what_insteadof_makes_of_a_url_counts(repo: GitWorkspace) -> None:
    repo.git("config", "url.https://host.example/.insteadOf", "work:")
    repo.git("remote", "set-url", "origin", "work:o/r.git")
    assert read(repo).remote_url == "https://host.example/o/r.git"


def test_the_default_branch_of_a_clone_is_known(repo: GitWorkspace, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Git(tmp_path).text("clone", "--quiet", repo.git("remote", "get-url", "origin"), str(other))
    source = read_source(other)
    assert source is not None
    assert source.default_branch == "main"


def test_a_worktree_has_its_own_state(repo: GitWorkspace, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    repo.git("worktree", "add", "--quiet", "-b", "feature", str(tree))
    (tree / "rollouts/multiply/main.py").write_text("changed\n")
    source = read_source(tree)
    assert source is not None
    assert (source.branch, source.dirty) == ("feature", ["rollouts/multiply/main.py"])
    assert source.identity == "owner/repo"
    assert read(repo).dirty == []


def test_a_workspace_inside_a_bigger_repository_says_so(tmp_path: Path) -> None:
    big = tmp_path / "big"
    inner = GitWorkspace(big / "agents" / "ws", git=False)
    Git(big).text("init", "--quiet")
    (big / "elsewhere.txt").write_text("not ours")
    source = read(inner)
    assert source.prefix == "agents/ws/"
    assert "rollouts/multiply/main.py" in source.untracked
    assert "elsewhere.txt" not in " ".join(source.untracked)


def test_files_of_a_rollout(repo: GitWorkspace, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    Git(library).text("init", "--quiet")
    Git(library).text("-c", "user.name=T", "-c", "user.email=t@t", "commit", "--quiet", "--allow-empty", "-m", "x")
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "rollouts/multiply/lib")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    repo.write("rollouts/multiply/weights.bin", pointer)
    repo.write("rollouts/multiply/.gitattributes", "*.tar filter=lfs diff=lfs\n")
    repo.git("config", "filter.lfs.clean", "cat")
    repo.write("rollouts/multiply/code.tar", "x" * 5000)
    repo.write("rollouts/multiply/big.txt", "x" * 3000)
    repo.commit()
    facts = read_rollout_files(repo.root, "multiply", large=2999)
    assert facts.submodules == ["rollouts/multiply/lib"]
    assert facts.lfs == ["rollouts/multiply/code.tar", "rollouts/multiply/weights.bin"]
    assert [(f.path.rsplit("/")[-1], f.size) for f in facts.large] == [("big.txt", 3000), ("code.tar", 5000)]
    assert facts.tracked == 6
    assert read_rollout_files(repo.root, "nothing").tracked == 0


def test_a_pin_is_looked_up(repo: GitWorkspace) -> None:
    first = repo.git("rev-parse", "HEAD")
    repo.git("rm", "--quiet", "-r", "rollouts/multiply")
    gone = repo.commit("without the rollout")
    pin = find_pinned_commit(repo.root, first[:8], "multiply", "main.py")
    assert (pin.found, pin.on_remote, pin.has_entrypoint) == (first, True, True)
    pin = find_pinned_commit(repo.root, gone, "multiply", "main.py")
    assert (pin.found, pin.on_remote, pin.has_entrypoint) == (gone, False, False)
    pin = find_pinned_commit(repo.root, "f" * 40, "multiply", "main.py")
    assert (pin.found, pin.on_remote, pin.has_entrypoint) == (None, None, None)


def test_what_git_says_is_passed_on_without_credentials(repo: GitWorkspace) -> None:
    with pytest.raises(GitError) as caught:
        Git(repo.root).text("fetch", "--quiet", "http://me:hunter2@127.0.0.1:1/o/r.git")
    assert "git fetch failed" in caught.value.message
    assert "hunter2" not in str(caught.value.to_wire())


def test_facts_start_no_program_of_the_repository(repo: GitWorkspace, tmp_path: Path) -> None:
    program, ran = tmp_path / "hooks" / "post-index-change", tmp_path / "ran"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "core.askPass"):
        repo.git("config", key, str(program))
    repo.git("config", "core.hooksPath", str(program.parent))
    ran.unlink(missing_ok=True)
    repo.write("rollouts/multiply/main.py", "changed\n")
    assert read(repo).dirty == ["rollouts/multiply/main.py"]
    read_rollout_files(repo.root, "multiply")
    find_pinned_commit(repo.root, "f" * 40, "multiply", "main.py")
    make_snapshot(repo.root)
    assert not ran.exists()


def test_a_submodule_is_a_repository_of_its_own(repo: GitWorkspace, tmp_path: Path) -> None:
    library = GitWorkspace(tmp_path / "library")
    library.commit()
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.root), "inner")
    source = read_source(repo.root / "inner")
    assert source is not None
    assert (source.commit, source.prefix, source.dirty) == (library.git("rev-parse", "HEAD"), "", [])


def test_without_git_the_error_says_so(repo: GitWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(GitMissing, match="not installed"):
        read_source(repo.root)
