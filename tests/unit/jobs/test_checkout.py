"""The exact commit in the work folder: complete or absent, used again, and clear about what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis.base.git import Git
from osmosis.jobs.context import JobFailed, JobLog
from osmosis.jobs.prepare.checkout import check_out, locate
from osmosis.records.run.job import LogLine
from osmosis.records.run.rollout import Category, Phase

from .conftest import git

Commit = Callable[[Path, dict[str, str]], str]


@pytest.fixture
def bare(tmp_path: Path, commit: Commit) -> tuple[Path, str, str]:
    """A bare repository with two commits: its path, the older and the newer commit."""
    work = tmp_path / "person"
    old = commit(work, {"rollouts/multiply/main.py": "print('old')\n"})
    new = commit(work, {"rollouts/multiply/main.py": "print('new')\n"})
    path = tmp_path / "hub" / "demo.git"
    path.parent.mkdir()
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(path))
    return path, old, new


async def test_checks_out_the_commit_asked_for_not_the_branch(
    bare: tuple[Path, str, str], tmp_path: Path, log: JobLog
) -> None:
    repository, old, _ = bare
    source = await check_out(str(repository), old, tmp_path / "work" / "source", environ=os.environ, log=log)
    assert (source / "rollouts/multiply/main.py").read_text() == "print('old')\n"
    assert git(source, "rev-parse", "HEAD") == old
    assert [p.name for p in source.parent.iterdir()] == ["source"]


async def test_used_again_when_clean_and_put_back_when_changed(
    bare: tuple[Path, str, str], tmp_path: Path, log: JobLog, log_lines: list[LogLine]
) -> None:
    repository, _, new = bare
    source = await check_out(str(repository), new, tmp_path / "source", environ=os.environ, log=log)
    shutil.rmtree(repository)  # the second attempt does not need it any more
    (source / "rollouts/multiply/main.py").write_text("broken")
    (source / "left.txt").write_text("left over")
    again = await check_out(str(repository), new, tmp_path / "source", environ=os.environ, log=log)
    assert (again / "rollouts/multiply/main.py").read_text() == "print('new')\n"
    assert not (again / "left.txt").exists()
    (source / "rollouts/multiply/__pycache__").mkdir()
    (source / "rollouts/multiply/__pycache__/main.cpython-311.pyc").touch()
    await check_out(str(repository), new, tmp_path / "source", environ=os.environ, log=log)
    assert [line.message for line in log_lines if "restoring it" in line.message] == [
        "the checkout has changed since: restoring it"
    ]
    assert sum("from an earlier attempt" in line.message for line in log_lines) == 2


async def test_a_checkout_is_four_commands(
    bare: tuple[Path, str, str], tmp_path: Path, log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a process, and everybody who submits waits for it."""
    repository, _, new = bare
    commands = []
    start = Git._start

    def counted(git: Git, args: tuple[str, ...], piped: bool) -> subprocess.Popen[bytes]:
        commands.append(args[0])
        return start(git, args, piped)

    monkeypatch.setattr(Git, "_start", counted)
    await check_out(str(repository), new, tmp_path / "source", environ=os.environ, log=log, most_mb=100)
    assert commands == ["init", "fetch", "ls-tree", "checkout"]


async def test_another_commit_replaces_the_checkout(bare: tuple[Path, str, str], tmp_path: Path, log: JobLog) -> None:
    repository, old, new = bare
    await check_out(str(repository), old, tmp_path / "source", environ=os.environ, log=log)
    source = await check_out(str(repository), new, tmp_path / "source", environ=os.environ, log=log)
    assert git(source, "rev-parse", "HEAD") == new


async def test_a_commit_that_is_gone(bare: tuple[Path, str, str], tmp_path: Path, log: JobLog) -> None:
    gone = "0123456789abcdef0123456789abcdef01234567"
    with pytest.raises(JobFailed) as caught:
        await check_out(str(bare[0]), gone, tmp_path / "source", environ=os.environ, log=log)
    failure = caught.value.failure
    assert failure.phase is Phase.SETUP
    assert failure.message.startswith("commit 0123456789ab is no longer in ")
    assert failure.fix
    assert "push" in failure.fix
    assert not list(tmp_path.glob("*source*"))


async def test_a_repository_that_is_gone(tmp_path: Path, log: JobLog) -> None:
    with pytest.raises(JobFailed) as caught:
        await check_out(str(tmp_path / "no.git"), "a" * 40, tmp_path / "source", environ=os.environ, log=log)
    assert "does not exist" in caught.value.message
    assert caught.value.failure.category is Category.CONNECTION


async def test_a_url_that_does_not_answer_hides_its_password(tmp_path: Path, log: JobLog) -> None:
    url = "http://person:hunter2@127.0.0.1:9/demo.git"
    with pytest.raises(JobFailed) as caught:
        await check_out(url, "a" * 40, tmp_path / "source", environ=os.environ, log=log)
    assert "http://127.0.0.1:9/demo.git cannot be read" in caught.value.message
    assert "hunter2" not in caught.value.failure.model_dump_json()


async def test_hooks_of_the_machine_do_not_run(bare: tuple[Path, str, str], tmp_path: Path, log: JobLog) -> None:
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "post-checkout").write_text('#!/bin/sh\ntouch "$HOME/ran"\n')
    (hooks / "post-checkout").chmod(0o755)
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n")
    environ = {**os.environ, "HOME": str(home)}
    await check_out(str(bare[0]), bare[2], tmp_path / "source", environ=environ, log=log)
    assert not (home / "ran").exists()


def test_locate_names_what_is_there(tmp_path: Path) -> None:
    for name in ("multiply", "search"):
        (tmp_path / "rollouts" / name).mkdir(parents=True)
    (tmp_path / "rollouts/multiply/server.py").touch()
    with pytest.raises(
        JobFailed, match=r"rollouts/multipy does not exist in commit aaaaaaaaaaaa; available: multiply, sea"
    ):
        locate(tmp_path, "a" * 40, "multipy", "main.py")
    with pytest.raises(JobFailed, match=r"rollouts/multiply/main.py does not exist .* available: server.py"):
        locate(tmp_path, "a" * 40, "multiply", "main.py")
    found = locate(tmp_path, "a" * 40, "multiply", "server.py")
    assert found.entrypoint == tmp_path / "rollouts/multiply/server.py"


async def test_nothing_that_a_commit_names_is_fetched_or_run(
    tmp_path: Path, commit: Commit, log: JobLog, log_lines: list[LogLine]
) -> None:
    """Submodules, and filters that the machine's user has set up (`git lfs install`)."""
    home, work, mark = tmp_path / "home", tmp_path / "person", tmp_path / "filter-ran"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[filter "lfs"]\n\tsmudge = touch {mark} && cat\n\trequired = true\n')
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    files = {".gitattributes": "*.bin filter=lfs\n", "rollouts/m/main.py": "", "weights.bin": pointer}
    files[".gitmodules"] = f'[submodule "x"]\n\tpath = x\n\turl = file://{tmp_path}/person\n'
    head = commit(work, files)
    environ = {**os.environ, "HOME": str(home)}
    source = await check_out(str(work), head, tmp_path / "source", environ=environ, log=log)
    assert (source / "weights.bin").read_text() == pointer
    assert not mark.exists()
    assert not (source / "x").exists()
    assert all(any(word in line.message for line in log_lines) for word in ("submodules", "Git LFS"))


async def test_a_rollout_behind_a_link_is_not_there(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "main.py").write_text("pass")
    (tmp_path / "source" / "rollouts" / "real").mkdir(parents=True)
    (tmp_path / "source" / "rollouts" / "linked").symlink_to(outside)
    (tmp_path / "source" / "rollouts" / "real" / "main.py").symlink_to(outside / "main.py")
    with pytest.raises(JobFailed, match=r"rollouts/linked does not exist in commit .*; available: real"):
        locate(tmp_path / "source", "a" * 40, "linked", "main.py")
    for entrypoint in ("main.py", "../real/main.py"):
        with pytest.raises(JobFailed, match="does not exist in commit"):
            locate(tmp_path / "source", "a" * 40, "real", entrypoint)
