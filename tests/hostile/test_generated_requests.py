"""Requests made from the platform's own OpenAPI, in and out of its bounds: whatever is sent, no answer is a 5xx.

Of every operation of the client API and the job API. A few requests each, the same every time; `make soak` makes many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from osmosis.platform.services import job_queue
from osmosis.testing.platform_app import RunningPlatform, running_platform
from osmosis.testing.platform_data import a_worker, add_run

FEW, MANY = 3, 200


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("generated") / "data") as found:
        yield found


def failures(running: RunningPlatform, examples: int) -> list[str]:
    """The answers that were 5xx, as request and status. 501 says that something is not offered here."""
    run_id = add_run(running.parts, running.workspace_id, "generated", "pending")
    with running.parts.db.write() as session:
        claimed = job_queue.claim(session, a_worker(session, embedded=True), 3600)
    lease = claimed.token if claimed else ""
    http = TestClient(running.app, raise_server_exceptions=False, base_url="http://127.0.0.1")
    document = http.get("/openapi.json").json()
    found: list[str] = []
    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = result.ok()
        if operation.path.startswith("/api/jobs/"):
            found += asked(http, operation, examples, {"Authorization": f"Bearer {lease}"}, run_id=run_id)
        else:
            found += asked(http, operation, examples, running.headers)
    assert http.get("/api/cli/verify", headers=running.headers).status_code == 200, "the login was good to the end"
    return found


def asked(
    http: TestClient, operation: Any, examples: int, headers: dict[str, str], *, run_id: str | None = None
) -> list[str]:
    """What went wrong with generated requests of one operation; those of a job are about this run."""
    found: list[str] = []

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        if run_id and "run_id" in (case.path_parameters or {}):
            case.path_parameters["run_id"] = run_id
        sent = case.as_transport_kwargs(base_url="http://127.0.0.1")
        sent["headers"] = {**dict(sent.get("headers") or {}), **headers}
        known = ("method", "url", "headers", "params", "json", "data", "content")
        answer = http.request(**{name: sent[name] for name in known if name in sent})
        if answer.status_code >= 500 and answer.status_code != 501:
            found.append(f"{case.method} {case.path}: {answer.status_code} {answer.text[:200]}")

    ask()
    return found


def test_a_few_requests_of_each_operation_find_no_5xx(running: RunningPlatform) -> None:
    assert failures(running, FEW) == []


@pytest.mark.soak
def test_many_requests_of_each_operation_find_no_5xx(running: RunningPlatform) -> None:
    assert failures(running, MANY) == []
