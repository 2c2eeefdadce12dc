"""The model of a job: any OpenAI-compatible endpoint, its key from a secret, refused before any row is spent."""

import asyncio
from itertools import pairwise

import pytest

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Category, Phase
from osmosis.records.run.status import RunStatus
from support.endpoint import ModelEndpoint, Reply, text_reply

from .conftest import AGENT, Desk, with_before

pytestmark = [pytest.mark.network, pytest.mark.slow]

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
    assert failure.category is Category.AUTH
    assert "the run ended early" in failure.message
    assert "the key was revoked" in failure.message
    report = desk.result.report
    assert report.completed == len(desk.api.rollouts) < report.total


def ask(desk: Desk, endpoint: ModelEndpoint, **evaluation: object) -> None:
    desk.config = {
        "experiment": {"model_path": "gpt-4o-mini"},
        "advanced": {"base_url": endpoint.url},
        "evaluation": evaluation,
    }


async def test_the_budget_counts_what_other_shards_have_spent(desk: Desk) -> None:
    with ModelEndpoint(lambda body, number: text_reply("#### 1", prompt_tokens=100, completion_tokens=0)) as endpoint:
        ask(desk, endpoint, max_tokens_total=10_000, batch_size=2)
        desk.api.heartbeat_reply = {"stop": False, "elsewhere": {"tokens": 9_750}}
        assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert desk.result.status is RunStatus.STOPPED, desk.log
    assert desk.result.failure.category is Category.BUDGET
    assert "of 10000 tokens used" in desk.result.failure.message
    # Three rollouts spend what was left; one more may have been in flight.
    assert 3 <= len(desk.keys) <= 4
    assert desk.result.report.completed == len(desk.keys)


async def test_a_budget_in_money_needs_a_price(desk: Desk) -> None:
    with ModelEndpoint() as endpoint:
        ask(desk, endpoint, max_cost=1.0)
        assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert "the price of gpt-4o-mini is unknown, so [evaluation].max_cost cannot be kept" in desk.result.failure.message
    assert "max_tokens_total" in str(desk.result.failure.fix)
    assert desk.keys == []


async def test_a_refusal_is_told_and_one_that_others_met_is_waited_for(desk: Desk) -> None:
    """The endpoint refuses the second question for 3 s; before that the platform asks for 2 s of silence."""
    loop = asyncio.get_running_loop()
    asked: list[float] = []

    def decide(_: JsonObject, number: int) -> Reply | None:
        asked.append(loop.time())
        if number == 1:
            desk.api.heartbeat_reply = None
            return Reply({"error": {"message": "slow down"}}, status=429, headers={"retry-after": "3"})
        return text_reply("#### 1")

    desk.api.heartbeat_reply = {"stop": False, "pause_s": 2.0}
    with ModelEndpoint(decide) as endpoint:
        ask(desk, endpoint, batch_size=1)
        assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert desk.keys == desk.owed
    told = [beat.pause_s for beat in desk.api.heartbeats if beat.pause_s]
    assert told, "the platform was told of the refusal"
    assert max(told) <= 3
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[1] >= 3, "nothing is asked while the endpoint wants no calls"


PYPROJECT = """
[project]
name = "multiply"
version = "0.1"
requires-python = ">=3.12"
dependencies = ["osmosis-ai[server]>=0.3.1,<0.4"]
"""
MAIN = """
import asyncio, json, os, re, urllib.request
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server


def ask(url, key, messages):
    body = json.dumps({"model": "osmosis-rollout", "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]


class Multiply(AgentWorkflow):
    async def run(self, ctx):
        messages = list(ctx.prompt)
        here = get_rollout_context()
        answer = await asyncio.to_thread(ask, here.chat_completions_url, here.api_key, messages)
        return [*messages, answer]


class Judge(Grader):
    async def grade(self, ctx):
        found = re.findall(r"####\\s*(-?[\\d.,]+)", str(ctx.sample.messages[-1].get("content")))
        ctx.set_reward(1.0 if found and float(found[-1].replace(",", "")) == float(ctx.label) else 0.0)


if __name__ == "__main__":
    import uvicorn
    app = create_rollout_server(backend=LocalBackend(workflow=Multiply, grader=Judge))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="warning")
"""


async def test_it_runs_to_the_end_with_rewards(desk: Desk) -> None:
    job = desk.write(desk.commit(main=MAIN, pyproject=PYPROJECT))
    assert await desk.run(job) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    report = desk.result.report
    assert report.completed == 12
    assert report.primary is not None, desk.api.at(0, 0)
    assert report.primary.scored == 12, report.failures
    assert 0 < report.primary.pass_rate < 1
    assert desk.keys == desk.owed
