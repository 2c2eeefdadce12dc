"""Requests made from the documents of the remote-rollout protocol (0.2 to 0.4), to a rollout server and to the model
endpoint that its rollouts call: no answer is a 5xx. A few requests each; `make soak` makes many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis

from osmosis.llm.model import ChatRequest, Completion
from osmosis.records.loop_request import RolloutRequest
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Usage
from osmosis.records.tool_schema import OpenAIFunctionToolSchema
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.serve.drive.traingate import TrainGate
from osmosis.serve.schemas import GATE_FILE, SERVER_FILE, documents
from osmosis.serve.server.delivery import DeliveryPolicy
from osmosis.serve.server.queue import ServeLimits
from osmosis.serve.server.v02 import create_app
from osmosis.testing.server import running_app

from .generated import FEW, MANY, asked

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


def failures(document: dict[str, Any], url: str, examples: int, **in_path: str) -> tuple[int, list[str]]:
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
    app = create_app(
        Echoes(),
        api_key=SECRET,
        spool_dir=tmp_path / "spool",
        limits=ServeLimits(),
        delivery_policy=DeliveryPolicy(quick_tries=1, base_delay_s=0.01, max_delay_s=0.02),
        environ={},
    )
    async with running_app(app) as url:
        count, found = await asyncio.to_thread(failures, documents()[SERVER_FILE], url, examples)
    assert (count, found) == (7, [])


@pytest.mark.parametrize("examples", EXAMPLES)
async def test_the_model_endpoint_of_rollouts_has_no_5xx(examples: int) -> None:
    gate = TrainGate(Says())
    url = await gate.start()
    try:
        endpoint = gate.open_rollout(ROLLOUT)
        endpoint.bearer = endpoint.callback_key = SECRET
        count, found = await asyncio.to_thread(failures, documents()[GATE_FILE], url, examples, rollout_id=ROLLOUT)
    finally:
        await gate.stop()
    assert (count, found) == (7, [])
