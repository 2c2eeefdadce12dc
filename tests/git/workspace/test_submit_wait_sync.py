"""`eval submit --wait-sync`: a real repository, and a platform on loopback whose sync of it fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from osmosis.testing.command_line import run_command
from osmosis.testing.git_workspace import GitWorkspace
from osmosis.workspace.templates import render_rollout

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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            body = json.dumps(FAILED if self.path.endswith("/sync") else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_a_sync_that_failed_ends_the_submit_at_once(repo: GitWorkspace, platform: tuple[str, list[str]]) -> None:
    url, asked = platform
    render_rollout("multiply", "multiply", repo.root, {}, True)
    repo.commit()
    repo.push()
    login = {"OSMOSIS_TOKEN": "t", "OSMOSIS_TOKEN_PLATFORM_URL": url, "OSMOSIS_PLATFORM_URL": url}
    run = run_command("eval", "submit", "--wait-sync", "--yes", "--json", cwd=repo.root, environ=login)
    assert run.code == 1
    assert run.error["message"] == "the sync failed: the remote hung up"
    assert "osmosis sync status" in run.error["details"]["hint"]
    assert asked.count("POST /api/cli/sync") == 1
    assert "POST /api/cli/eval-runs" not in asked
