"""Requests answered in one step are answered as the framework answers them: each is sent both ways."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.routing import Match, Route

from osmosis.platform import tables
from osmosis.platform.api.contract_route import ContractRoute
from osmosis.platform.api.direct import RouteTable, plan_of
from osmosis.platform.services import tokens
from osmosis.platform.tables import QueueState
from osmosis.testing.platform_data import a_worker, add_rollouts, add_run, rollout

from .conftest import Site

HOT = (
    ("GET", "/health"),
    ("GET", "/api/cli/verify"),
    ("GET", "/api/cli/eval-runs"),
    ("GET", "/api/cli/eval-runs/{name}"),
    ("GET", "/api/cli/eval-runs/{name}/logs"),
    ("POST", "/api/jobs/{run_id}/heartbeat"),
    ("POST", "/api/jobs/{run_id}/rollouts"),
    ("POST", "/api/jobs/{run_id}/logs"),
    ("POST", "/api/workers/claim"),
)


@pytest.fixture(scope="module")
def framework(shared: Site) -> TestClient:
    """The same platform, asked so that the framework answers: what is mounted below a path is its own."""
    headers = dict(shared.http.headers)
    return TestClient(shared.http.app, root_path="/elsewhere", headers=headers, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def run_id(shared: Site) -> str:
    with shared.platform.db.read() as session:
        workspace = session.query(tables.Workspace).one()
    found = add_run(shared.platform, workspace.id, "large", sampled_rows=3)
    add_rollouts(shared.platform, found, [rollout(row, 0) for row in range(3)])
    return found


def plans(site: Site) -> dict[tuple[str, str], object]:
    routes = [route for route in site.http.app.routes if isinstance(route, ContractRoute)]
    return {(method, route.path): plan_of(route) for route in routes for method in route.methods}


def test_hot_routes_are_answered_in_one_step_and_those_that_stream_or_limit_are_not(shared: Site) -> None:
    known = plans(shared)
    assert not [hot for hot in HOT if known[hot] is None]
    for left in (
        ("POST", "/api/cli/bootstrap"),  # its limit by address is a dependency of the framework's
        ("PUT", "/api/jobs/{run_id}/artifacts/{rollout_id}/{path:path}"),
        ("POST", "/api/jobs/{run_id}/finish"),
    ):
        assert known[left] is None


def test_the_table_chooses_the_route_that_the_framework_would(shared: Site) -> None:
    routes = shared.http.app.routes
    table, direct = RouteTable(routes), 0
    for route in [one for one in routes if isinstance(one, Route)]:
        path = route.path
        for name, convertor in route.param_convertors.items():
            path = path.replace(f"{{{name}:path}}", "a/b").replace(f"{{{name}}}", convertor.to_string("imports"))
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
            matched = next((one for one in routes if one.matches(scope)[0] is Match.FULL), None)
            plan = table.find(dict(scope))
            assert plan is None or plan.route is matched, (method, path)
            direct += plan is not None
    assert direct > 80


REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/health", {}),
    ("HEAD", "/health", {}),
    ("POST", "/health", {}),
    ("GET", "/health", {"headers": {"Host": "elsewhere.example"}}),
    ("GET", "/api/cli/verify", {}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-CLI-Version": "0.1.9"}}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-CLI-Version": "0.2.10"}}),
    ("GET", "/api/cli/verify", {"headers": {"Authorization": "Bearer unknown"}}),
    ("GET", "/api/cli/verify", {"headers": {"Authorization": "Basic x"}}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-Workspace": ""}}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-Workspace": "nowhere"}}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-Workspace": "a\0b"}}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-Git": "local/demo"}}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-Workspace": "", "X-Osmosis-Git": "no/where"}}),
    ("GET", "/api/cli/verify", {"headers": {"X-Osmosis-Workspace": "", "X-Osmosis-Git": "nonsense"}}),
    ("HEAD", "/api/cli/verify", {}),
    ("PUT", "/api/cli/verify", {}),
    ("GET", "/api/cli/verify/", {}),
    ("GET", "/api/cli/eval-runs", {}),
    ("GET", "/api/cli/eval-runs?limit=1&offset=0", {}),
    ("GET", "/api/cli/eval-runs?limit=1&limit=2", {}),
    ("GET", "/api/cli/eval-runs?limit=", {}),
    ("GET", "/api/cli/eval-runs?limit=x", {}),
    ("GET", "/api/cli/eval-runs?limit=0", {}),
    ("GET", "/api/cli/eval-runs?limit=1e1", {}),
    ("GET", "/api/cli/eval-runs?offset=99999999999999999999", {}),
    ("GET", "/api/cli/eval-runs/large", {}),
    ("GET", "/api/cli/eval-runs/nothing", {}),
    ("GET", "/api/cli/eval-runs/%F0%9F%98%80", {}),
    ("GET", "/api/cli/eval-runs/large/metrics", {}),
    ("GET", "/api/cli/eval-runs/large/rollouts?status=failed", {}),
    ("GET", "/api/cli/eval-runs/large/rollouts?status=odd", {}),
    ("GET", "/api/cli/eval-runs/large/outcomes?limit=2", {}),
    ("GET", "/api/cli/eval-runs/large/rollouts/1/0", {}),
    ("GET", "/api/cli/eval-runs/large/rollouts/one/0", {}),
    ("GET", "/api/cli/eval-runs/large/rollouts/99999999999999999999/0", {}),
    ("GET", "/api/cli/eval-runs/imports/nothing", {}),
    ("GET", "/api/cli/models/base/a/b", {}),
    ("POST", "/api/cli/tokens", {"json": {"name": 7}}),
    ("POST", "/api/cli/tokens", {"json": {}, "headers": {"Authorization": "Bearer unknown"}}),
    ("POST", "/api/cli/tokens", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
    ("POST", "/api/cli/tokens", {"content": b'"\\ud800"', "headers": {"Content-Type": "application/json"}}),
    ("POST", "/api/cli/tokens", {"content": b"", "headers": {"Content-Type": "application/json"}}),
    ("POST", "/api/cli/tokens", {"content": b'{"name": "x"}', "headers": {"Content-Type": "text/plain"}}),
    ("POST", "/api/cli/tokens", {"content": b"x" * 100_000, "headers": {"Authorization": "Bearer unknown"}}),
    ("POST", "/api/cli/eval-runs/large/retry", {"json": {"everything": "maybe"}}),
    ("POST", "/api/cli/eval-runs/large/stop", {}),
    ("DELETE", "/api/cli/eval-runs/nothing", {}),
    ("POST", "/api/jobs/nothing/heartbeat", {"json": {"stage": "rollouts"}}),
    ("POST", "/api/jobs/nothing/heartbeat", {"json": {"stage": "odd"}}),
    ("GET", "/api/jobs/nothing/examples?limit=5000", {}),
    ("GET", "/api/jobs/nothing/rollouts?bodies=yes", {}),
    ("GET", "/api/cli/benchmarks/aime", {}),
    ("GET", "/api/nothing", {}),
]


@pytest.mark.parametrize(("method", "path", "more"), REQUESTS)
def test_both_ways_answer_alike(
    shared: Site, framework: TestClient, run_id: str, method: str, path: str, more: dict[str, Any]
) -> None:
    answers = [http.request(method, path, **more) for http in (shared.http, framework)]
    direct, measure = map(said, answers)
    assert direct == measure


def said(answer: httpx.Response) -> tuple[int, object, dict[str, str]]:
    """What does not differ from request to request."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")}
    assert answer.headers["x-request-id"]
    if not answer.headers.get("content-type", "").startswith("application/json") or not answer.content:
        return answer.status_code, answer.content, headers
    body = answer.json()
    body.pop("request_id", None)
    return answer.status_code, body, headers


def test_what_a_job_sends_is_stored_alike(shared: Site, framework: TestClient) -> None:
    stored = []
    batch = {"rollouts": [rollout(row, 0).to_dict() for row in range(2)]}
    for number, http in enumerate((shared.http, framework)):
        with shared.platform.db.write() as session:
            workspace = session.query(tables.Workspace).one()
            worker = a_worker(session, f"w{number}")
        found = add_run(shared.platform, workspace.id, f"live-{number}", "running")
        text = f"oslease_{number}"
        with shared.platform.db.write() as session:
            session.add(
                tables.Job(run_id=found, state=QueueState.HELD, worker_id=worker.id, lease_hash=tokens.hash_token(text))
            )
        lease = {"Authorization": f"Bearer {text}"}
        beat = http.post(f"/api/jobs/{found}/heartbeat", json={"stage": "rollouts", "completed": 2}, headers=lease)
        sent = [http.post(f"/api/jobs/{found}/rollouts", json=batch, headers=lease).json() for _ in range(2)]
        lines = http.get(f"/api/jobs/{found}/rollouts?bodies=true", headers=lease).text
        progress = shared.json("GET", f"eval-runs/live-{number}")["eval_run"]["progress"]
        stored.append((beat.json(), sent, lines, progress))
    assert stored[0] == stored[1]
    assert stored[0][1] == [{"stored": 2}, {"stored": 0}]


def test_a_change_counts_once_against_the_limit_of_its_account(shared: Site) -> None:
    """Also where the framework answers in the end, because the body does not fit."""
    taken: list[str] = []
    rates = shared.platform.rates
    take = rates.take
    object.__setattr__(shared.platform, "rates", Counting(taken, take))
    try:
        shared.http.post("/api/cli/tokens", json={"name": "x"})
        assert taken == ["write"]
        shared.http.post("/api/cli/tokens", json={"name": 7})
        assert taken == ["write", "write"]
    finally:
        object.__setattr__(shared.platform, "rates", rates)


class Counting:
    def __init__(self, taken: list[str], take: Any) -> None:
        self._taken = taken
        self._take = take

    def take(self, kind: Any, key: str) -> None:
        self._taken.append(kind)
        self._take(kind, key)
