"""Servers answer to their own names only, and one without a key takes nothing that a web page can send unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from osmosis.base.host_guard import HostNames
from osmosis.platform.app import create_app
from osmosis.platform.settings import PlatformSettings
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.workflow import AgentWorkflow
from osmosis.serve.server.foreground import ServeError, ServeOptions, app_of, choose_host


class Nothing(AgentWorkflow):
    async def run(self, ctx) -> None:
        raise AssertionError("never run")


@pytest.mark.parametrize(
    ("names", "header", "accepted"),
    [
        ((), "127.0.0.1:7575", True),
        ((), "localhost", True),
        ((), "[::1]:80", True),
        ((), "", False),
        ((), "evil.example", False),
        ((), "localhost.evil.example", False),
        ((), "127.0.0.1.evil.example", False),
        (("osmosis.lan",), "OSMOSIS.lan.:443", True),
        (("osmosis.lan",), "a.osmosis.lan", False),
        (("*.osmosis.lan",), "a.osmosis.lan", True),
        (("*.osmosis.lan",), "evilosmosis.lan", False),
        (("2001:db8::1",), "[2001:db8::1]:80", True),
        (("*",), "anything", True),
        (("*",), "", False),
    ],
)
def test_names(names: tuple[str, ...], header: str, accepted: bool) -> None:
    assert HostNames(names).accepts(header) is accepted


def test_the_platform_answers_to_its_names_only(tmp_path: Path) -> None:
    settings = PlatformSettings(
        data_dir=tmp_path,
        worker=False,
        public_url="https://osmosis.example",
        allowed_hosts=("osmosis.lan",),
        environ={},
    )
    app = create_app(settings)
    for host, status in {
        "127.0.0.1:7575": 401, "osmosis.example": 401, "osmosis.lan": 401, "evil.example": 421, "a b": 421,
    }.items():  # fmt: skip
        answer = TestClient(app).get("/api/cli/verify", headers={"Host": host})
        assert answer.status_code == status, host
    refused = TestClient(app).get("/api/cli/verify", headers={"Host": "evil.example"}).json()
    assert "--allowed-host" in refused["hint"]
    assert TestClient(app).get("/health", headers={"Host": "10.0.0.7:7575"}).status_code == 200  # a load balancer


def test_allowed_hosts_of_the_environment(tmp_path: Path) -> None:
    environ = {"OSMOSIS_ALLOWED_HOSTS": "a.lan, *.b.lan,"}
    assert PlatformSettings.from_environ(environ, data_dir=tmp_path).allowed_hosts == ("a.lan", "*.b.lan")


def test_a_local_server_is_reached_by_this_machine_only() -> None:
    assert choose_host(None, local=True) == "127.0.0.1"
    assert choose_host(None, local=False) == "0.0.0.0"
    assert choose_host("::1", local=True) == "::1"
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.com"):
        with pytest.raises(ServeError, match="local mode has no API key"):
            choose_host(host, local=True)
        assert choose_host(host, local=False) == host


def test_a_web_page_cannot_start_a_rollout_on_a_local_server(tmp_path: Path) -> None:
    options = ServeOptions(local=True, log_level="error")
    app = app_of(LocalBackend(Nothing), options, environ={"OSMOSIS_DATA_DIR": str(tmp_path)})
    with TestClient(app, base_url="http://127.0.0.1:9000") as page:
        for kind in ("text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", ""):
            headers = {"Content-Type": kind, "Origin": "https://evil.example"}
            answer = page.post("/rollout", content=b"{}", headers=headers)
            assert answer.status_code == 415, kind
        assert page.post("/rollout", content=(part for part in [b"{}"])).status_code == 415  # chunked
        ours = {"Content-Type": "application/json; charset=utf-8"}
        assert page.post("/rollout", content=b"{}", headers=ours).status_code == 422  # read, and incomplete
        assert page.post("/rollout", content=b"{}", headers={**ours, "Host": "evil.example"}).status_code == 421
        assert "access-control-allow-origin" not in page.options("/rollout").headers
