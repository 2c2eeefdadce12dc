from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.git_workspace import GitWorkspace


@pytest.fixture
def folder(tmp_path: Path) -> GitWorkspace:
    """A workspace folder without git."""
    return GitWorkspace(tmp_path / "ws", git=False)


@pytest.fixture(scope="session")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace `ws`, committed and pushed to the bare remote `owner/repo.git` beside it. Not to be written to."""
    place = tmp_path_factory.mktemp("pushed")
    workspace = GitWorkspace(place / "ws")
    workspace.commit("first")
    workspace.add_remote()
    workspace.push()
    return place


@pytest.fixture
def repo(pushed: Path, tmp_path: Path) -> GitWorkspace:
    """A copy of `pushed`, with its own remote: copying is much faster than a dozen git calls."""
    for name in ("ws", "owner"):
        shutil.copytree(pushed / name, tmp_path / name)
    workspace = GitWorkspace.__new__(GitWorkspace)
    workspace.root = tmp_path / "ws"
    config = workspace.root / ".git" / "config"
    old, new = (str(place / "owner" / "repo.git") for place in (pushed, tmp_path))
    config.write_text(config.read_text("utf-8").replace(old, new), "utf-8")
    return workspace


@contextmanager
def answering(answer: Callable[[str, str], tuple[int, object]]) -> Iterator[str]:
    """The address of a platform on loopback that says what `answer` makes of method and path: status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, said = answer(self.command, self.path.partition("?")[0])
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
