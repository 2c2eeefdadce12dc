"""`eval submit --wait-sync`: a real repository, and a platform on loopback whose sync of it fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from osmosis.workspace.templates import render_rollout
from support.command_line import run_command
from support.git_workspace import GitWorkspace

from .conftest import answering

FAILED = {
    "repository": {"full_name": "owner/repo"},
    "status": "Failed",
    "default_branch": "main",
    "last_synced_commit_sha": None,
    "branches": [],
    "events": [{"id": "1", "status": "Failed", "error": "the remote hung up"}],
}


@pytest.fixture
def platform() -> Iterator[tuple[str, list[str]]]:
    """The address of a platform whose every sync has failed, and what it is asked."""
    asked: list[str] = []

    def answer(method: str, path: str) -> tuple[int, object]:
        asked.append(f"{method} {path}")
        return 200, FAILED if path.endswith("/sync") else {}

    with answering(answer) as url:
        yield url, asked


def test_a_sync_that_failed_ends_the_submit_at_once(repo: GitWorkspace, platform: tuple[str, list[str]]) -> None:
    url, asked = platform
    render_rollout("multiply", "multiply", repo.root, {}, True)
    repo.commit()
    repo.push()
    login = {"OSMOSIS_TOKEN": "t", "OSMOSIS_TOKEN_PLATFORM_URL": url, "OSMOSIS_PLATFORM_URL": url}
    run = run_command("eval", "submit", "--wait-sync", "--yes", "--json", cwd=repo.root, environ=login)
    assert run.code == 1
    assert run.error["message"] == "the sync failed: the remote hung up"
    assert "osmosis sync --status" in run.error["details"]["hint"]
    assert asked.count("POST /api/cli/sync") == 1
    assert "POST /api/cli/eval-runs" not in asked
