"""A benchmark of a Harbor task on the platform: Harbor's own agent `terminus-2` does it, a judge reads what it did."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support.endpoint import ModelEndpoint, Reply, text_reply
from support.platform_process import PlatformProcess

pytestmark = [pytest.mark.slow, pytest.mark.network]

TASK = {
    "task.toml": 'version = "1.0"\n',
    "instruction.md": "Write the product of 12 and 34 into /app/answer.txt.",
    "environment/Dockerfile": "FROM python:3.12-slim\n",
    "tests/test.sh": '#!/bin/sh\n[ "$(cat /app/answer.txt)" = 408 ]\necho $((1 - $?)) >/logs/verifier/reward.txt\n',
}
MAIN = """
import os
from pathlib import Path

from osmosis import Grader, HarborBackend
from osmosis.sdk.evaluate_rubric import evaluate_rubric_async


class Judged(Grader):
    async def grade(self, ctx):
        provider, _, model = os.environ["JUDGE_MODEL"].partition("/")
        judge = {"provider": provider, "model": model, "api_key_env": os.environ["JUDGE_API_KEY_ENV"]}
        answer = str(ctx.sample.messages[-1]["content"])
        ctx.set_reward(ctx.sample.reward * await evaluate_rubric_async("Is that a product?", answer, judge))


backend = HarborBackend(
    Path(__file__).parent / "tasks",
    task_mode="dataset",
    agent=os.environ.get("HARBOR_AGENT"),
    native_agent_kwargs={"record_terminal_session": False, "max_turns": 6},
    environment_config="osmosis.testing.harbor_environment:ProcessEnvironment",
    grader=Judged,
)
"""
PYPROJECT = """
[project]
name = "multiply"
version = "0"
requires-python = ">=3.12"
dependencies = ["osmosis-ai[harbor]"]
"""


def answer(body: dict[str, Any], number: int) -> Reply:
    if body["model"] == "judge":
        return text_reply(json.dumps({"score": 0.5, "explanation": "half of it"}))
    is_done = any(message["role"] == "assistant" for message in body["messages"])
    commands = [] if is_done else [{"keystrokes": "echo 408 > answer.txt\n", "duration": 1.0}]
    return text_reply(json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": is_done}))


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("tmux") is None, reason="terminus-2 needs tmux")
def test_a_harness_of_harbor_and_a_judge(tmp_path: Path) -> None:
    task = {f"tasks/product/{name}": text for name, text in TASK.items()}
    row = {"user_prompt": "12 x 34?", "ground_truth": "408", "metadata": {"task_name": "product"}}
    # What the judge is asked goes to a server of this machine, which no sandbox with a network of its own reaches.
    platform = PlatformProcess(tmp_path / "data", job_command=f"{sys.executable} -m osmosis.jobs", no_sandbox="")
    with ModelEndpoint(answer) as endpoint:
        platform.start()
        try:
            platform.login()
            platform.prepare(
                tmp_path / "workspace",
                files={"main.py": MAIN, "pyproject.toml": PYPROJECT, **task},
                rows=[row] * 4,
                dataset="multiply",
            )
            for name in ("MODEL_KEY", "JUDGE_KEY"):
                secret = {"name": name, "value": f"value-of-{name}", "scope": "workspace"}
                platform.json("POST", "environment-secrets", json=secret)
            model = {"type": "endpoint", "base_url": endpoint.url, "model": "m", "api_key_secret": "MODEL_KEY"}
            body = {
                "experiment_config": {"benchmark": "multiply"},
                "agents": [{"harness": "terminus-2", "model": {**model, "extra_headers": {"X-Team": "a"}}}],
                "execution_config": {
                    "judge_model": "openai/judge",
                    "judge_api_key_secret": "JUDGE_KEY",
                    "pass_threshold": 0.5,
                },
                "env_config": {"OPENAI_API_BASE": endpoint.url},
            }
            name = platform.json("POST", "benchmark-runs", json=body)["name"]
            platform.reaches(f"{name}-agent-1", "finished", within_s=600)
            results = platform.http.get(f"/api/cli/eval-runs/{name}-agent-1/rollouts").json()
            assert "value-of-" not in json.dumps(results)
            (agent,) = platform.json("GET", f"benchmark-runs/{name}")["agent_metrics"]
            assert (agent["harness"], agent["n_tasks"], agent["pass_at_1"]["value"]) == ("terminus-2", 4, 1.0), results[
                "rollouts"
            ][0]
        finally:
            platform.end()
    asked = list(zip(endpoint.requests, endpoint.headers, strict=True))
    judged = [headers for body, headers in asked if body["model"] == "judge"]
    worked = [headers for body, headers in asked if body["model"] == "m"]
    assert len(judged) == 4
    assert len(worked) >= 8
    assert {headers["Authorization"] for headers in judged} == {"Bearer value-of-JUDGE_KEY"}
    assert {(headers["Authorization"], headers["x-team"]) for headers in worked} == {("Bearer value-of-MODEL_KEY", "a")}
