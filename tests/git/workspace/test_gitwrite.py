"""Commits, helpers, pushes and snapshots: they do what they say and leave everything else alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from osmosis.base.git import Git, GitError
from osmosis.workspace.git import (
    commit_paths,
    init_repository,
    make_snapshot,
    push,
    push_snapshot,
    read_source,
    set_authority,
    set_credential_helper,
    set_remote,
)
from support.git_workspace import GitWorkspace


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who never told git a name."""
    for name in list(os.environ):
        if name.startswith(("GIT_AUTHOR", "GIT_COMMITTER", "GIT_CONFIG")) or name == "EMAIL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.mark.usefixtures("nobody")
def test_a_first_commit_works_without_an_identity_and_sets_none(folder: GitWorkspace) -> None:
    assert init_repository(folder.root)
    assert not init_repository(folder.root)
    commit = commit_paths(folder.root, "first", ["rollouts", "configs"])
    assert commit == folder.git("rev-parse", "HEAD")
    assert folder.git("log", "-1", "--format=%an <%ae>") == "osmosis <osmosis@localhost>"
    assert "user." not in folder.git("config", "--list", "--local")
    assert folder.git("symbolic-ref", "--short", "HEAD") == "main"


def test_an_identity_that_is_there_is_used(repo: GitWorkspace) -> None:
    repo.write("data/x.jsonl", "{}\n")
    commit_paths(repo.root, "more", ["data/x.jsonl"])
    assert repo.git("log", "-1", "--format=%an") == "Test"


def test_only_the_named_files_are_committed(repo: GitWorkspace) -> None:
    repo.write("mine.txt", "not for this commit")
    repo.write("rollouts/multiply/main.py", "changed and staged")
    repo.git("add", "rollouts")
    repo.write("data/x.jsonl", "{}\n")
    commit_paths(repo.root, "more", ["data/x.jsonl"])
    assert repo.git("show", "--name-only", "--format=", "HEAD") == "data/x.jsonl"
    source = read_source(repo.root)
    assert source is not None
    assert (source.dirty, source.untracked) == (["rollouts/multiply/main.py"], ["mine.txt"])
    assert commit_paths(repo.root, "nothing new", ["data/x.jsonl"]) is None


def test_push_follows_the_branch_and_learns_the_default_one(tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path / "ws")
    workspace.commit()
    bare = workspace.add_remote()
    set_remote(workspace.root, str(bare))
    push(workspace.root, "main")
    source = read_source(workspace.root)
    assert source is not None
    assert (source.upstream, source.ahead, source.default_branch) == ("origin/main", 0, "main")


def test_the_credential_helper_is_asked_for_one_host_only(repo: GitWorkspace, tmp_path: Path) -> None:
    helper = tmp_path / "with space" / "helper.sh"
    helper.parent.mkdir()
    helper.write_text('#!/bin/sh\ncat > /dev/null\necho "username=u"\necho "password=$TOKEN_FILE"\n')
    helper.chmod(0o755)
    for _ in range(2):
        url = "http://127.0.0.1:7575/git/local/demo.git"
        key = set_credential_helper(repo.root, url, [str(helper)], {"TOKEN_FILE": "it's here"})
    assert key == "credential.http://127.0.0.1:7575.helper"
    # The empty first value switches other helpers off; asking twice adds nothing.
    assert len(repo.git("config", "--local", "--get-all", key).splitlines()) == 2
    answer = Git(repo.root).run("credential", "fill", stdin=b"protocol=http\nhost=127.0.0.1:7575\n\n")
    assert b"password=it's here" in answer
    elsewhere = b"protocol=https\nhost=github.com\n\n"
    with pytest.raises(GitError):
        Git(repo.root).run("-c", "credential.helper=", "credential", "fill", stdin=elsewhere)


def test_a_private_authority_is_trusted_for_one_host_only(repo: GitWorkspace) -> None:
    for name in ("old.pem", "new.pem"):
        set_authority(repo.root, "https://osmosis.lan:8443/git/local/demo.git", f"/{name}")
    trusted = repo.git("config", "--get-urlmatch", "http.sslCAInfo", "https://osmosis.lan:8443/git/local/demo.git")
    assert trusted == "/new.pem"
    with pytest.raises(GitError):
        Git(repo.root).run("config", "--get-urlmatch", "http.sslCAInfo", "https://github.com/a/b.git")


def state_of(repo: GitWorkspace) -> tuple[str, str, str, str]:
    return (
        repo.git("rev-parse", "HEAD"),
        repo.git("status", "--porcelain=v2", "--branch"),
        repo.git("ls-files", "--stage"),
        repo.git("for-each-ref"),
    )


def test_a_snapshot_holds_the_working_tree_and_touches_nothing(repo: GitWorkspace) -> None:
    repo.write("rollouts/multiply/main.py", "changed\n")
    repo.write("rollouts/multiply/staged.py", "staged\n")
    repo.git("add", "rollouts/multiply/staged.py")
    repo.write("rollouts/multiply/new.py", "untracked\n")
    repo.write(".env", "SECRET=1\n")
    (repo.root / "rollouts/multiply/pyproject.toml").unlink()
    before = state_of(repo)
    snapshot = make_snapshot(repo.root)
    assert state_of(repo) == before
    names = repo.git("ls-tree", "-r", "--name-only", snapshot.commit).splitlines()
    assert "rollouts/multiply/new.py" in names
    assert "rollouts/multiply/pyproject.toml" not in names
    assert ".env" not in names
    assert repo.git("show", f"{snapshot.commit}:rollouts/multiply/main.py") == "changed"
    assert snapshot.parent == before[0]
    assert snapshot.ref == f"refs/osmosis/snapshots/{snapshot.commit}"
    assert set(snapshot.files) == {
        "rollouts/multiply/main.py",
        "rollouts/multiply/staged.py",
        "rollouts/multiply/new.py",
        "rollouts/multiply/pyproject.toml",
    }
    assert "+changed" in snapshot.diff


def test_a_snapshot_of_bytes_that_are_no_utf8_can_be_sent(repo: GitWorkspace) -> None:
    (repo.root / "data" / "latin.txt").write_bytes(b"caf\xe9\n")
    (repo.root / os.fsdecode(b"data/caf\xe9.bin")).write_bytes(bytes(range(256)))
    snapshot = make_snapshot(repo.root)
    assert "+caf\ufffd" in snapshot.diff
    json.dumps([snapshot.diff, *snapshot.files], ensure_ascii=False).encode()
    assert "latin.txt" in repo.git("ls-tree", "-r", "--name-only", snapshot.commit)


def test_snapshots_of_one_tree_are_one_commit(repo: GitWorkspace) -> None:
    repo.write("rollouts/multiply/main.py", "changed\n")
    first = make_snapshot(repo.root)
    parent = repo.git("show", "-s", "--format=%ct", str(first.parent))
    assert repo.git("show", "-s", "--format=%ct %at", first.commit) == f"{parent} {parent}"
    assert make_snapshot(repo.root) == first
    repo.write("rollouts/multiply/main.py", "changed again\n")
    assert make_snapshot(repo.root).commit != first.commit


def test_a_snapshot_is_pushed_as_a_hidden_ref(repo: GitWorkspace) -> None:
    repo.write("rollouts/multiply/main.py", "changed\n")
    snapshot = make_snapshot(repo.root)
    push_snapshot(repo.root, snapshot)
    bare = Path(repo.git("remote", "get-url", "origin"))
    refs = Git(bare).text("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    assert f"{snapshot.ref} {snapshot.commit}" in refs
    assert f"refs/heads/main {snapshot.parent}" in refs
    assert "snapshots" not in repo.git("for-each-ref")


def test_a_snapshot_before_the_first_commit_and_from_a_worktree(tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path / "ws")
    snapshot = make_snapshot(workspace.root)
    assert snapshot.parent is None
    assert "rollouts/multiply/main.py" in snapshot.files
    workspace.commit()
    tree = tmp_path / "tree"
    workspace.git("worktree", "add", "--quiet", "-b", "feature", str(tree))
    (tree / "rollouts/multiply/main.py").write_text("changed in the worktree\n")
    assert make_snapshot(tree).files == ("rollouts/multiply/main.py",)
