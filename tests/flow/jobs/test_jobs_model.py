"""The model of a job: any OpenAI-compatible endpoint, its key from a secret, refused before any row is spent."""

from __future__ import annotations

import pytest

from osmosis.records.rollout import Category, Phase
from osmosis.records.run_status import RunStatus
from osmosis.testing.endpoint import ModelEndpoint, Reply

from .conftest import AGENT, Desk

pytestmark = [pytest.mark.flow, pytest.mark.network]

KEY = "key-of-the-endpoint-1234"


def use(desk: Desk, endpoint: ModelEndpoint) -> None:
    """A config whose model is `endpoint`, asked with a secret's value."""
    desk.config = {
        "experiment": {"model_path": "local-model"},
        "advanced": {"base_url": endpoint.url, "api_key_env": "ENDPOINT_KEY", "params": {"temperature": 0.5}},
        "secrets": {"required": ["ENDPOINT_KEY"]},
    }
    desk.secrets["ENDPOINT_KEY"] = KEY


async def test_an_endpoint_instead_of_the_stand_in(desk: Desk) -> None:
    with ModelEndpoint() as endpoint:
        use(desk, endpoint)
        assert await desk.run(desk.write(desk.commit(main=AGENT))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert desk.result.report is not None
    assert desk.result.report.completed == 12
    assert desk.result.report.usage.total_tokens > 0
    assert {headers["Authorization"] for headers in endpoint.headers} == {f"Bearer {KEY}"}
    assert {body["model"] for body in endpoint.requests} == {"local-model"}
    assert {body["temperature"] for body in endpoint.requests} == {0.5}
    assert KEY not in desk.api.text()


async def test_a_key_that_is_refused_stops_the_run_before_any_row(desk: Desk) -> None:
    def refuse(_: object, __: int) -> Reply:
        return Reply({"error": {"message": f"bad key {KEY}"}}, status=401)

    with ModelEndpoint(refuse) as endpoint:
        use(desk, endpoint)
        assert await desk.run(desk.write(desk.commit(main=AGENT))) == 0
    failure = desk.result.failure
    assert failure is not None
    assert (failure.phase, failure.category) == (Phase.SETUP, Category.AUTH)
    assert "the model local-model at" in failure.message
    assert len(endpoint.requests) == 1
    assert desk.api.rollouts == {}
    assert KEY not in desk.api.text()


async def test_a_model_that_breaks_in_the_middle_ends_the_run_and_says_why(desk: Desk) -> None:
    def breaks(_: object, number: int) -> Reply | None:
        return None if number < 6 else Reply({"error": {"message": "the key was revoked"}}, status=401)

    desk.rows = 40
    with ModelEndpoint(breaks) as endpoint:
        use(desk, endpoint)
        assert await desk.run(desk.write(desk.commit(main=AGENT))) == 0
    assert desk.result.status is RunStatus.FAILED
    failure = desk.result.failure
    assert failure is not None
    assert failure.category is Category.AUTH
    assert "the run ended early" in failure.message
    assert "the key was revoked" in failure.message
    report = desk.result.report
    assert report is not None
    assert report.completed == len(desk.api.rollouts) < report.total
