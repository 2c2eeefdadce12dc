"""`osmosis eval` asks by Messages and Responses what our own endpoint answers by them: both directions meet."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osmosis.llm import open_model
from osmosis.records.run.plan import ModelSpec
from osmosis.serve.client.model_http import InferenceEndpoint
from support.command_line import run_command
from support.eval_project import write_project

KEY = "the-key-of-the-endpoint"


@contextmanager
def serving() -> Iterator[str]:
    """The calculator behind the endpoint of `osmosis model serve`; its address without `/v1`."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    model = open_model(ModelSpec.parse("offline/calculator"))
    endpoint = InferenceEndpoint(model, name="claude-x", key=KEY, time_limit_s=30)
    url = asyncio.run_coroutine_threadsafe(endpoint.open(), loop).result(10)
    yield url.removesuffix("/v1")
    asyncio.run_coroutine_threadsafe(endpoint.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.mark.parametrize(
    ("name", "key_env", "suffix"),
    [("anthropic/claude-x", "ANTHROPIC_API_KEY", ""), ("openai/responses/claude-x", "OPENAI_API_KEY", "/v1")],
)
def test_an_evaluation_by_each_api(address: str, tmp_path: Path, name: str, key_env: str, suffix: str) -> None:
    agent, score = f"dialect_agent{suffix[1:]}", f"dialect_score{suffix[1:]}"
    write_project(tmp_path, agent=agent, score=score)
    words = ["eval", "-m", f"{agent}:agent", "-d", "d.jsonl", "--eval-fn", f"{score}:exact", "--model", name]
    words += ["--base-url", address + suffix, "--name"]
    done = run_command(*words, "right", cwd=tmp_path, environ={key_env: KEY})
    assert done.code == 0, done.err
    rollouts = (tmp_path / ".osmosis/runs/right/rollouts.jsonl").read_text().splitlines()
    assert len(rollouts) == 10
    usage = [json.loads(line)["usage"] for line in rollouts]
    assert all(each["prompt_tokens"] and each["completion_tokens"] for each in usage)
    wrong = run_command(*words, "wrong", cwd=tmp_path, environ={key_env: "another-key-than-that"})
    assert wrong.code != 0
    assert "the key is missing or wrong" in wrong.err
    assert "another-key" not in wrong.err + wrong.out
