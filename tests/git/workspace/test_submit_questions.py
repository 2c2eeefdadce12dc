"""What a submit asks a platform before it is sent: all of it at once, while git is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from osmosis.workspace.templates import render_rollout
from support.command_line import run_command
from support.git_workspace import GitWorkspace

from .conftest import answering

QUESTIONS = ["/api/cli/datasets/multiply", "/api/cli/environment-secrets", "/api/cli/sync"]
TIME_LIMIT_S = 30


@pytest.fixture
def platform() -> Iterator[tuple[str, list[str]]]:
    """The address of a platform that answers nothing before it has been asked everything, and what it is asked."""
    asked: list[str] = []
    all_asked = threading.Barrier(len(QUESTIONS))

    def answer(_: str, path: str) -> tuple[int, object]:
        asked.append(path)
        try:
            all_asked.wait(TIME_LIMIT_S)
        except threading.BrokenBarrierError:
            return 401, {"code": "AUTH_REQUIRED", "message": "one after the other"}
        return 401, {"code": "AUTH_REQUIRED", "message": "everything was asked"}

    with answering(answer) as url:
        yield url, asked


def test_everything_is_asked_at_once(repo: GitWorkspace, platform: tuple[str, list[str]]) -> None:
    url, asked = platform
    render_rollout("multiply", "multiply", repo.root, {}, True)
    config = repo.root / "configs" / "eval" / "multiply.toml"
    config.write_text(config.read_text().replace("required = []", 'required = ["KEY_OF_THE_TEST"]'))
    repo.commit()
    repo.push()
    login = {"OSMOSIS_TOKEN": "t", "OSMOSIS_TOKEN_PLATFORM_URL": url, "OSMOSIS_PLATFORM_URL": url}
    run = run_command("eval", "submit", "--yes", "--json", cwd=repo.root, environ=login)
    assert sorted(asked) == QUESTIONS
    assert run.code == 1
    assert "everything was asked" in run.error["message"], "an answer that refuses is the submit's own error"
