"""Each request has an id in its answer, error and log lines, and counts in `/metrics`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from osmosis.platform import tables
from osmosis.platform.app import create_app
from osmosis.platform.maintenance.telemetry import formatter
from support.platform_data import add_run

HERE = ("127.0.0.1", 5000)


def client(site: Any, *, at: tuple[str, int] = HERE, **changes: Any) -> TestClient:
    settings = site.platform.settings.model_copy(update=changes)
    app = create_app(settings)

    @app.get("/bug")
    def bug() -> None:
        raise RuntimeError("a bug")

    return TestClient(app, client=at, raise_server_exceptions=False)


def test_an_error_names_its_request_and_the_log_does_too(shared: Any, caplog: pytest.LogCaptureFixture) -> None:
    http = client(shared)
    answers = [http.get("/api/cli/eval-runs"), http.get("/nowhere"), http.get("/bug"), http.post("/api/cli/bootstrap")]
    assert [answer.status_code for answer in answers] == [401, 404, 500, 400]
    for answer in answers:
        assert answer.json()["request_id"] == answer.headers["X-Request-ID"]
    assert len({answer.headers["X-Request-ID"] for answer in answers}) == 4
    caplog.handler.setFormatter(formatter("json"))
    own = http.get("/bug", headers={"X-Request-ID": "mine-1"})
    assert own.headers["X-Request-ID"] == own.json()["request_id"] == "mine-1"
    lines = [json.loads(line) for line in caplog.handler.stream.getvalue().splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line.get("request_id") == "mine-1"]
    assert line["level"] == "error"
    assert "RuntimeError: a bug" in line["exception"]
    assert "GET /bug failed" in line["message"]


@pytest.mark.parametrize("given", ["x" * 65, "a b", "", "\u00e9", 'a"b'])
def test_an_id_that_is_no_plain_word_is_not_taken(shared: Any, given: str) -> None:
    answer = client(shared).get("/health", headers={"X-Request-ID": given.encode("latin-1")})
    assert len(answer.headers["X-Request-ID"]) == 16


def test_a_line_for_each_request_has_no_query(shared: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="osmosis.platform.requests")
    client(shared).get("/health?signature=abc")
    assert "GET /health" not in caplog.text
    client(shared, log_requests=True).get("/health?signature=abc")
    assert "GET /health: 200" in caplog.text
    assert "signature" not in caplog.text


def test_metrics_count_requests_by_route_and_say_what_waits(site: Any) -> None:
    http = client(site)
    workspace = site.json("GET", "workspaces")["workspaces"][0]["id"]
    for number, status in enumerate(("pending", "finished", "finished")):
        add_run(site.platform, workspace, f"run-{number}", status)
    with site.platform.db.write() as session:
        session.add(tables.Deployment(workspace_id=workspace, name="served", status="pending"))
    http.get("/api/cli/eval-runs/secret-name")
    http.get("/nowhere/else")
    text = http.get("/metrics").text
    assert 'osmosis_runs{kind="eval",status="finished"} 2.0' in text
    assert 'osmosis_runs{kind="serving",status="pending"} 1.0' in text
    assert "osmosis_database_up 1.0" in text
    route = 'method="GET",route="/api/cli/eval-runs/{name}",status="401"'
    assert f"osmosis_request_seconds_count{{{route}}} 1.0" in text
    assert 'route="(none)",status="404"' in text
    assert "secret-name" not in text
    assert "nowhere" not in text


def test_metrics_are_read_here_or_with_the_token(shared: Any, tmp_path: Path) -> None:
    assert client(shared).get("/metrics").status_code == 200
    assert client(shared, at=("10.0.0.9", 5000)).get("/metrics").status_code == 404
    for header in ("X-Forwarded-For", "Forwarded", "Via"):
        assert client(shared).get("/metrics", headers={header: "127.0.0.1"}).status_code == 404
    assert client(shared, public_url="https://osmosis.example.com").get("/metrics").status_code == 404
    far = client(shared, at=("10.0.0.9", 5000), metrics_token=SecretStr("read-me"))
    assert far.get("/metrics").status_code == 401
    assert far.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert far.get("/metrics", headers={"Authorization": "Bearer read-me"}).status_code == 200
    assert "read-me" not in repr(far.app.state.platform.settings)  # type: ignore[attr-defined]
