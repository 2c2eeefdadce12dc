"""A rollout that asks for the other osmosis-ai of the package index: its own environment, its own protocol."""

from __future__ import annotations

import pytest

from osmosis.records.run_status import RunStatus

from .conftest import Desk

pytestmark = [pytest.mark.flow, pytest.mark.network]

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
    assert report is not None
    assert report.completed == 12
    assert report.primary is not None, desk.api.at(0, 0)
    assert report.primary.scored == 12, report.failures
    assert report.primary.pass_rate is not None
    assert 0 < report.primary.pass_rate < 1
    assert desk.keys == desk.owed
