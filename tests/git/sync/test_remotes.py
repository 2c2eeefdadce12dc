from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from osmosis.errors import ValidationError
from osmosis.platform.services.gitcmd import GitFailed, personal, run_git, sealed, strip_credentials
from osmosis.platform.services.repositories import internal_name, parse_remote


@pytest.mark.parametrize(
    ("url", "identity", "local"),
    [
        ("https://github.com/Ann/Demo.git", "ann/demo", False),
        ("https://github.com/ann/demo", "ann/demo", False),
        ("https://git.example:8443/group/sub/demo.git", "sub/demo", False),
        ("ssh://git@host:2222/ann/demo.git", "ann/demo", False),
        ("git@github.com:ann/demo.git", "ann/demo", False),
        ("host:ann/demo", "ann/demo", False),
        ("git://host/ann/demo", "ann/demo", False),
        ("file:///srv/git/ann/demo.git", "ann/demo", True),
        ("/srv/git/ann/demo.git/", "ann/demo", True),
        ("/demo.git", "local/demo", True),
    ],
)
def test_every_usual_form(url: str, identity: str, local: bool) -> None:
    remote = parse_remote(url)
    assert (remote.identity, remote.local) == (identity, local)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "demo",
        "-u/x/y",
        "--upload-pack=/bin/sh x/y",
        "ext::sh -c x",
        "ext::sh/x/y",
        "ftp://host/a/b",
        "javascript://host/a/b",
        "https:///a/b",
        "https://host/only",
        "https://host/a\n/b",
        "https://host/a b/c",
        "../relative/repo",
        "~/repo/x",
        "https://host/a/..",
    ],
)
def test_what_cannot_be_fetched_from(url: str) -> None:
    with pytest.raises(ValidationError):
        parse_remote(url)


@pytest.mark.parametrize("url", ["https://ann:hunter2@host/a/b", "https://hunter2@host/a/b", "ssh://g:hunter2@h/a/b"])
def test_a_credential_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_remote(url)
    assert "hunter2" not in str(caught.value.to_wire())


def test_internal_names_are_safe_path_segments() -> None:
    assert internal_name("Ann", "My Work/space") == "ann/my-work-space"
    assert internal_name("..", "..") == "local/local"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fatal: https://ann:pw@host/a.git failed", "fatal: https://host/a.git failed"),
        ("ssh://git@host/a", "ssh://host/a"),
        ("mail ann@host stays", "mail ann@host stays"),
    ],
)
def test_strip_credentials(text: str, shown: str) -> None:
    assert strip_credentials(text) == shown


def test_a_command_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nsleep 600 & echo $! > child; wait\n")
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        with pytest.raises(GitFailed, match="took longer"):
            run_git(["fetch"], environ=environ, timeout_s=0.5)
    finally:
        os.chdir(here)


def test_errors_are_gits_words_without_credentials() -> None:
    with pytest.raises(GitFailed) as caught:
        run_git(["ls-remote", "--", "https://ann:hunter2@localhost:1/x.git"], environ=personal(os.environ))
    assert "ls-remote failed" in caught.value.message
    assert "hunter2" not in caught.value.message


def test_the_persons_configuration_reaches_remotes_only(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[x]\n\tmine = yes\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    assert run_git(["config", "x.mine"], environ=personal(environ)) == b"yes\n"
    with pytest.raises(GitFailed):
        run_git(["config", "x.mine"], environ=sealed(environ))


def test_a_transport_that_runs_commands_is_refused_by_git_itself(tmp_path: Path) -> None:
    target = f"ext::touch {tmp_path}/ran"
    with pytest.raises(GitFailed, match="not allowed"):
        run_git(["ls-remote", "--", target], environ=personal(os.environ))
    assert not (tmp_path / "ran").exists()
