"""Requests made from our OpenAPI documents, in and out of their bounds: whatever is sent, no answer is a 5xx.

Of every operation of the client API, the job API, the remote-rollout protocol (0.2 to 0.4) and the model endpoint that
rollouts call. A few requests each, the same every time; `make soak` makes many.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from osmosis.compat.server import LoopServerSettings, build_loop_server
from osmosis.llm.model import ChatRequest, Completion
from osmosis.platform.scheduling import queue
from osmosis.records.protocol.v02 import OpenAIFunctionToolSchema, RolloutRequest
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Usage
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.server.callbacks import DeliveryPolicy
from osmosis.serve.server.queue import ServeLimits
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import a_worker, add_run
from support.protocol_documents import PROXY_FILE, SERVER_FILE, documents
from support.server import running_app

pytestmark = pytest.mark.slow
FEW, MANY = 3, 200

BASE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("generated") / "data") as found:
        yield found


def failures(running: RunningPlatform, examples: int) -> list[str]:
    """The answers that were 5xx, as request and status. 501 says that something is not offered here."""
    run_id = add_run(running.parts, running.workspace_id, "generated", "pending")
    with running.parts.db.write() as session:
        claimed = queue.claim(session, a_worker(session, embedded=True), 3600)
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


ROLLOUT = "generated"
SECRET = "generated-key-1"
KEY = {"Authorization": f"Bearer {SECRET}"}
EXAMPLES = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.soak)]


class Echoes(RolloutAgentLoop):
    """Says what it was told, without a model."""

    name = "echoes"

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        return ctx.complete(list(ctx.request.messages), reward=1.0)


class Says:
    """A model with one answer."""

    spec = ModelSpec(name="scripted/model", kind="offline")

    async def complete(self, request: ChatRequest) -> Completion:
        message = {"role": "assistant", "content": "42"}
        return Completion(message=message, finish_reason="stop", usage=Usage(), model=self.spec.name)

    async def close(self) -> None:
        return None


def failures_of_server(document: dict[str, Any], url: str, examples: int, **in_path: str) -> tuple[int, list[str]]:
    """How many operations there are, and which answers were 5xx."""
    found: list[str] = []
    count = 0
    with httpx.Client(trust_env=False, timeout=60) as http:
        for result in schemathesis.openapi.from_dict(document).get_all_operations():
            found += asked(http.request, result.ok(), examples, KEY, base_url=url, **in_path)
            count += 1
        assert http.get(f"{url}/health").status_code == 200, "it lives"
    return count, found


@pytest.mark.parametrize("examples", EXAMPLES)
async def test_a_rollout_server_has_no_5xx(tmp_path: Path, examples: int) -> None:
    settings = LoopServerSettings(
        api_key=SECRET,
        spool_dir=tmp_path / "spool",
        limits=ServeLimits(),
        delivery_policy=DeliveryPolicy(quick_tries=1, base_delay_s=0.01, max_delay_s=0.02),
        environ={},
    )
    app = build_loop_server(Echoes(), settings)
    async with running_app(app) as url:
        count, found = await asyncio.to_thread(failures_of_server, documents()[SERVER_FILE], url, examples)
    assert (count, found) == (7, [])


@pytest.mark.parametrize("examples", EXAMPLES)
async def test_the_model_endpoint_of_rollouts_has_no_5xx(examples: int) -> None:
    gate = ModelProxy(Says())
    url = await gate.open()
    try:
        endpoint = gate.open_rollout(ROLLOUT)
        endpoint.bearer = endpoint.callback_key = SECRET
        count, found = await asyncio.to_thread(
            failures_of_server, documents()[PROXY_FILE], url, examples, rollout_id=ROLLOUT
        )
    finally:
        await gate.close()
    assert (count, found) == (7, [])


Send = Callable[..., httpx.Response]
"""Takes `method`, `url`, `headers` and a body as httpx does."""


def asked(
    send: Send, operation: Any, examples: int, headers: dict[str, str], *, base_url: str, **in_path: str
) -> list[str]:
    """The answers that were 5xx, as request and status; 501 says that something is not offered. `in_path` are values of
    parameters of the path that every request has."""
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
        for name, value in in_path.items():
            if name in (case.path_parameters or {}):
                case.path_parameters[name] = value
        sent = case.as_transport_kwargs(base_url=base_url)
        sent["headers"] = {**dict(sent.get("headers") or {}), **headers}
        known = ("method", "url", "headers", "params", "json", "data", "content")
        answer = send(**{name: sent[name] for name in known if name in sent})
        if answer.status_code >= 500 and answer.status_code != 501:
            found.append(f"{case.method} {case.path}: {answer.status_code} {answer.text[:200]}")

    ask()
    return found
