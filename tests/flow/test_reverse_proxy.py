"""A platform behind a reverse proxy that puts its own Host in the place of the browser's, as many do by default."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from osmosis.testing.platform_process import PlatformProcess

pytestmark = pytest.mark.flow

HOP = {"host", "connection", "content-length", "transfer-encoding", "keep-alive"}
"""What a proxy does not pass on as it came."""


def forwarding_to(upstream: str) -> type[BaseHTTPRequestHandler]:
    client = httpx.Client(base_url=upstream, trust_env=False, timeout=60)

    class Forward(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = [(name, value) for name, value in self.headers.items() if name.lower() not in HOP]
            headers.append(("X-Forwarded-For", self.client_address[0]))
            answer = client.request(self.command, self.path, content=body, headers=headers)
            self.send_response(answer.status_code)
            for name, value in answer.headers.multi_items():
                if name not in HOP and name != "content-encoding":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PUT = do_DELETE = forward

        def log_message(self, *_: object) -> None:
            pass

    return Forward


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[PlatformProcess, str]]:
    """A platform, and the address of the proxy in front of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    platform = PlatformProcess(tmp_path / "data", environ=dict(os.environ), public_url=url)
    platform.start()
    server = ThreadingHTTPServer(("127.0.0.1", int(url.rpartition(":")[2])), forwarding_to(str(platform.http.base_url)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield platform, url
    finally:
        server.shutdown()
        server.server_close()
        platform.end()


def test_forms_uploads_and_pushes_work_through_a_proxy_that_changes_the_host(
    proxied: tuple[PlatformProcess, str], tmp_path: Path
) -> None:
    platform, url = proxied
    platform.http.close()
    platform.http = httpx.Client(base_url=url, trust_env=False, timeout=60)
    token = (platform.data_dir / "bootstrap.token").read_text().strip()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as browser:
        form = re.search(r'name="csrf" value="([^"]+)"', browser.get("/login").text)
        assert form
        sent = {"token": token, "csrf": form[1], "next": "/"}
        entered = browser.post("/login", data=sent, headers={"Origin": url})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert browser.get("/").status_code == 200
        elsewhere = browser.post("/login", data=sent, headers={"Origin": "https://evil.example"})
        assert elsewhere.status_code == 403
        assert browser.get("/metrics").status_code == 404, "whoever asks through a proxy is not from here"
    platform.login()
    platform.prepare(tmp_path / "checkout")  # pushes to, and uploads to, the addresses that the platform names
    repository = platform.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["url"]
    assert repository.startswith(f"{url}/git/")
    run = platform.submit()
    assert platform.reaches(run, "finished")["eval_run"]["status"] == "finished"
