import asyncio
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis.base.git import (
    Git,
    GitError,
    GitMissing,
    GitTimeout,
    NoRepository,
    fetching_environ,
    sealed_environ,
    summarize_stderr,
    to_valid_text,
    users_environ,
)
from osmosis.base.processes import start_token


@pytest.fixture
def slow_git(tmp_path: Path) -> dict[str, str]:
    """An environment whose git starts a child, notes its id, and never ends."""
    fake = tmp_path / "git"
    fake.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/child; wait\n")
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while start_token(pid) is not None and time.monotonic() < until:
        time.sleep(0.01)
    return start_token(pid) is None


def test_only_the_chosen_environment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_MASTER_KEY", "hunter2")
    show = ("-c", "alias.seen=!env", "seen")
    sealed = Git.bare(None, sealed_environ(os.environ)).text(*show)
    assert "hunter2" not in sealed
    assert "HOME=/nonexistent" in sealed.splitlines()
    assert "OSMOSIS_MASTER_KEY=hunter2" in Git(tmp_path).text(*show).splitlines()


def test_the_persons_configuration_reaches_remotes_only(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[x]\n\tmine = yes\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    assert Git.bare(None, fetching_environ(environ)).run("config", "x.mine") == b"yes\n"
    assert Git(tmp_path, users_environ(environ)).text("config", "x.mine") == "yes"
    with pytest.raises(GitError):
        Git.bare(None, sealed_environ(environ)).run("config", "x.mine")


@pytest.mark.parametrize("made", [sealed_environ, fetching_environ])
def test_what_keeps_a_server_safe(made: Callable[..., dict[str, str]]) -> None:
    environ = made({"PATH": os.environ["PATH"], "HTTPS_PROXY": "http://p", "SECRET": "x"}, settings={"a.b": "c"})
    listed = Git.bare(None, environ).text("config", "--list")
    wanted = {"safe.directory=*", "core.hookspath=/dev/null", "core.fsmonitor=false", "protocol.ext.allow=never"}
    wanted |= {"fetch.recursesubmodules=false", "credential.interactive=false", "gc.auto=0", "a.b=c"}
    assert wanted <= set(listed.splitlines())
    assert environ["GIT_TERMINAL_PROMPT"] == "0"
    assert "SECRET" not in environ
    assert ("HTTPS_PROXY" in environ) == (made is fetching_environ)


def test_a_transport_that_runs_commands_is_refused_by_git_itself(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="not allowed"):
        Git.bare(None, fetching_environ(os.environ)).run("ls-remote", "--", f"ext::touch {tmp_path}/ran")
    assert not (tmp_path / "ran").exists()


def test_errors_are_gits_words_without_credentials() -> None:
    git = Git.bare(None, fetching_environ({"PATH": os.environ["PATH"]}))
    with pytest.raises(GitError) as caught:
        git.run("ls-remote", "--", "https://ann:hunter2@localhost:1/x.git")
    assert "ls-remote failed" in caught.value.message
    assert "hunter2" not in caught.value.message + caught.value.stderr


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("no push today\nerror: failed to push\nhint: see\n", "no push today; error: failed to push"),
        (
            "Host key verification failed.\nfatal: Could not read\n\nPlease make sure\nand exists.\n",
            "Host key verification failed.; fatal: Could not read",
        ),
        ("just words\n", "just words"),
        ("", "no message"),
    ],
)
def test_last_words(stderr: str, said: str) -> None:
    assert summarize_stderr(stderr) == said


def test_no_repository_and_no_git_are_errors_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(NoRepository):
        Git(tmp_path, users_environ(GIT_CEILING_DIRECTORIES=str(tmp_path.parent))).text("status")
    with pytest.raises(GitMissing):
        Git(tmp_path, {"PATH": str(tmp_path)}).text("status")
    with pytest.raises(GitError, match=r"git status cannot be started: .*not-there"):
        Git(tmp_path / "not-there").text("status")


@pytest.mark.parametrize("own_group", [True, False])
def test_a_command_that_hangs_is_stopped_with_its_children(
    tmp_path: Path, slow_git: dict[str, str], own_group: bool
) -> None:
    with pytest.raises(GitTimeout, match=r"git fetch took longer than 0\.5 s"):
        Git(tmp_path, slow_git, timeout_s=0.5, own_group=own_group).run("fetch")
    assert gone(int((tmp_path / "child").read_text()))


async def test_a_cancelled_call_ends_git(tmp_path: Path, slow_git: dict[str, str]) -> None:
    task = asyncio.create_task(Git(tmp_path, slow_git, own_group=True).text_async("fetch"))
    while not (tmp_path / "child").exists():  # noqa: ASYNC110 - nothing of ours tells
        await asyncio.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    assert start_token(child) is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(child)


async def test_input_output_and_log(tmp_path: Path) -> None:
    git = Git(tmp_path)
    assert git.run("hash-object", "--stdin", stdin=b"") == b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\n"
    lines: list[str] = []
    assert await git.text_async("-c", "alias.said=!echo out; echo err >&2; :", "said", log=lines.append) == "out"
    assert lines == ["err"]
    assert to_valid_text(git.text("-c", r"alias.said=!printf 'caf\351'; :", "said")) == "caf\ufffd"
