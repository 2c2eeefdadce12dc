"""What a submit finds out before it asks a platform: which config is meant, and what the remote is."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.workspace.templates import render_rollout
from support.command_line import CommandRun, run_command
from support.git_workspace import GitWorkspace

NOBODY = {
    "OSMOSIS_TOKEN": "t",
    "OSMOSIS_TOKEN_PLATFORM_URL": "http://127.0.0.1:9",
    "OSMOSIS_PLATFORM_URL": "http://127.0.0.1:9",
}
"""Logged in at a platform that does not answer."""


@pytest.fixture
def with_config(repo: GitWorkspace) -> GitWorkspace:
    render_rollout("multiply", "multiply", repo.root, {}, True)
    repo.commit()
    return repo


def submit(folder: Path, *words: str) -> CommandRun:
    return run_command("eval", "submit", *words, "--yes", "--json", cwd=folder, environ=NOBODY)


@pytest.mark.parametrize(("url", "message"), [(None, "no remote named origin"), ("ftp://host/o/r", "ftp://host/o/r")])
def test_a_remote_that_names_no_repository_is_said_by_git_alone(
    with_config: GitWorkspace, url: str | None, message: str
) -> None:
    change = ["remove", "origin"] if url is None else ["set-url", "origin", url]
    with_config.git("remote", *change)
    error = submit(with_config.root).error
    assert error["code"] == "VALIDATION"
    assert message in error["message"]
    assert "origin" in error["details"]["hint"]


def test_a_config_is_found_from_below_by_its_path_in_the_workspace(with_config: GitWorkspace) -> None:
    with_config.git("remote", "remove", "origin")
    below = with_config.root / "rollouts" / "multiply"
    assert "no remote" in submit(below, "configs/eval/multiply.toml").error["message"]
    missing = submit(below, "configs/eval/nothing.toml").error
    assert (missing["code"], "configs/eval/nothing.toml" in missing["message"]) == ("NOT_FOUND", True)
