"""Requests made from the platform's own OpenAPI, in and out of its bounds: whatever is sent, no answer is a 5xx.

Of every operation of the client API and the job API. A few requests each, the same every time; `make soak` makes many.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from starlette.testclient import TestClient

from osmosis.platform.services import job_queue
from osmosis.testing.platform_app import RunningPlatform, running_platform
from osmosis.testing.platform_data import a_worker, add_run

from .generated import FEW, MANY, asked

BASE = "http://127.0.0.1"


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
    http = TestClient(running.app, raise_server_exceptions=False, base_url=BASE)
    document = http.get("/openapi.json").json()
    found: list[str] = []
    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = result.ok()
        if operation.path.startswith("/api/jobs/"):
            bearer = {"Authorization": f"Bearer {lease}"}
            found += asked(http.request, operation, examples, bearer, base_url=BASE, run_id=run_id)
        else:
            found += asked(http.request, operation, examples, running.headers, base_url=BASE)
    assert http.get("/api/cli/verify", headers=running.headers).status_code == 200, "the login was good to the end"
    return found


def test_a_few_requests_of_each_operation_find_no_5xx(running: RunningPlatform) -> None:
    assert failures(running, FEW) == []


@pytest.mark.soak
def test_many_requests_of_each_operation_find_no_5xx(running: RunningPlatform) -> None:
    assert failures(running, MANY) == []
