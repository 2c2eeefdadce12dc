"""Contract B on the wire: every route declares its answer as a record, and bodies have the contract's keys."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from osmosis.records.base import Record
from support.platform_data import EVALUATION

from .conftest import Site, rows_of

TO_JOBS = {f"/api/jobs/{{run_id}}/{name}" for name in ("source", "dataset", "examples")}
NO_JSON = {"/git", "/static", "/api/objects", *TO_JOBS}
PAGE = {"total_count", "has_more", "next_offset"}
ROW = {"id", "name", "status", "created_at", "started_at", "completed_at", "creator_name", "creator_email"}
ROW |= {"platform_url", "model", "dataset", "rollout"}
DETAIL = {"config", "dataset", "rollout", "entrypoint", "branch", "commit_sha", "env_config", "resolved_secret_scopes"}
DATASET = {
    "id", "file_name", "file_size", "status", "data_preview", "file_format", "original_file_format", "row_count",
    "original_file_size", "creator_name", "created_at", "updated_at", "platform_url",
}  # fmt: skip
SYNC = {"repository", "status", "default_branch", "last_synced_commit_sha", "last_synced_at", "branches", "events"}


CONFIGS = tuple(f"/api/cli/{name}" for name in ("eval-runs", "training-runs", "training-runs/check", "benchmark-runs"))
"""Routes that take the sections of a config, which its own record checks."""


def test_every_route_declares_a_record_of_the_contract(shared: Site) -> None:
    described = shared.anonymous.get("/openapi.json").json()["paths"]
    routes = [each for each in shared.anonymous.app.routes if isinstance(each, APIRoute) and each.path in described]
    assert len(routes) > 50
    for route in routes:
        if route.status_code == 204 or any(route.path.startswith(prefix) for prefix in NO_JSON):
            continue
        record = route.response_model
        assert isinstance(record, type), f"{route.methods} {route.path} declares {record}"
        assert issubclass(record, Record), f"{route.methods} {route.path} declares {record}"
        assert record.__module__.startswith("osmosis.records."), route.path
        for parameter in route.dependant.body_params:
            named = parameter.field_info.annotation
            assert route.path in CONFIGS or "osmosis." in str(named), f"{route.path} takes {named}"


def test_answers_carry_the_keys_of_the_contract(ready: Site) -> None:
    sent = ready.json("POST", "eval-runs", json=EVALUATION)
    assert {"id", "name", "status", "created_at", "platform_url"} <= set(sent)
    listed = ready.json("GET", "eval-runs")
    assert set(listed) == {"eval_runs", *PAGE}
    row = listed["eval_runs"][0]
    assert row.keys() >= {*ROW, "results", "config"}
    assert (row["results"], row["started_at"], set(row["model"])) == (None, None, {"name"})
    detail = ready.json("GET", f"eval-runs/{sent['name']}")
    assert detail.keys() >= {*DETAIL, "eval_run", "results"}
    assert detail["config"]["model_path"] == "offline/calculator"
    metrics = ready.json("GET", f"eval-runs/{sent['name']}/metrics")
    assert metrics["overview"].keys() == {
        "duration_ms", "total_samples", "completed_samples", "graded", "passed", "failed", "skipped", "pass_rate",
        "pass_threshold", "tokens_used",
    }  # fmt: skip
    stopped = ready.json("POST", f"eval-runs/{sent['id']}/stop", json={})
    assert stopped["stop_requested"] is True or stopped["status"] == "stopped"
    lines = ready.json("GET", f"eval-runs/{sent['name']}/logs")
    assert set(lines) == {"logs", "next_cursor", "latest_cursor"}
    assert all(set(line) == {"timestamp", "level", "step", "message"} for line in lines["logs"])
    assert ready.json("GET", "training-runs") == {
        "training_runs": [], "total_count": 0, "has_more": False, "next_offset": None,
    }  # fmt: skip


def test_datasets_sync_and_accounts_carry_the_keys_of_the_contract(ready: Site) -> None:
    created = ready.announce("more", rows_of(5))
    assert created["upload"].keys() == {
        "method",
        "presigned_url",
        "expires_in",
        "upload_headers",
        "s3_key",
        "upload_id",
    }
    assert ready.complete(created).keys() >= DATASET
    assert ready.json("GET", "datasets")["datasets"][0].keys() >= DATASET
    download = ready.json("GET", "datasets/more/download")
    assert set(download) == {"presigned_url", "expires_in", "file_name"}
    synced = ready.json("GET", "sync")
    assert synced.keys() >= SYNC
    assert not {"connected", "error", "rollouts"} & synced.keys()
    rollout = ready.json("GET", "rollouts")["rollouts"][0]
    assert rollout.keys() >= {"id", "name", "last_synced_commit_sha", "last_synced_at", "repo_full_name", "created_at"}
    verified = ready.json("GET", "verify")
    assert set(verified) == {"user", "expires_at", "token_id", "workspace", "valid", "organization"}
    token = ready.http.headers["authorization"]
    unscoped = ready.anonymous.get("/api/cli/verify", headers={"Authorization": token}).json()
    assert "workspace" not in unscoped
    assert (unscoped["valid"], unscoped["organization"]) == (True, verified["workspace"])


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "dev-rollout-server", "does not offer development servers"),
        ("DELETE", "dev-rollout-server/x", "does not offer development servers"),
    ],
)
def test_what_is_not_offered_is_said_in_a_sentence(shared: Site, method: str, path: str, words: str) -> None:
    refused = shared.json(method, path, expect=404)
    assert (refused["code"], words in refused["message"]) == ("NOT_OFFERED", True)
    assert refused["hint"]
    assert shared.anonymous.request(method, f"/api/cli/{path}").status_code == 401


@pytest.mark.parametrize(
    "path", ["secrets", "deployments", "benchmarks", "benchmark-runs", "models/base", "models/lora"]
)
def test_an_empty_list_is_a_whole_page(shared: Site, path: str) -> None:
    body: dict[str, Any] = shared.json("GET", "environment-secrets" if path == "secrets" else path)
    assert body.keys() >= PAGE
    assert [value for value in body.values() if isinstance(value, list)] == [[]]
