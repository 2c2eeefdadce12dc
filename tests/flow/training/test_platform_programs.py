"""A program under training as a person trains it: the platform, the tiny model and its trainer are real, the program
speaks one API or another, and with the same seed each gives the curve of chat completions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.training_platform import CONFIG, TrainingPlatform, training_platform

pytestmark = [pytest.mark.network, pytest.mark.slow]
STEPS, ROLLOUTS = 2, 32
DIALECTS = ("chat", "messages", "responses")
PROGRAM = r"""
import json, os, sys, urllib.request

dialect, prompt, variables = sys.argv[1], sys.argv[2], os.environ
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ADD = {"name": "add", "description": "Add two numbers."}
OPENAI = {"Authorization": "Bearer " + variables["OPENAI_API_KEY"]}


def ask(url, key, body):
    headers = {"Content-Type": "application/json", **key}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))


def add(arguments):
    try:
        return str(int(arguments["a"]) + int(arguments["b"]))
    except (ValueError, TypeError, KeyError):
        return "error"


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def chat(history):
    tools = [{"type": "function", "function": {**ADD, "parameters": SCHEMA}}]
    body = {"model": variables["MODEL"], "messages": history, "tools": tools}
    message = ask(variables["OPENAI_BASE_URL"] + "/chat/completions", OPENAI, body)["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    results = [(call["id"], add(parsed(call["function"]["arguments"]))) for call in calls]
    history += [message, *({"role": "tool", "tool_call_id": id, "content": text} for id, text in results)]
    return calls


def messages(history):
    body = {"model": variables["MODEL"], "max_tokens": 500, "messages": history}
    body["tools"] = [{**ADD, "input_schema": SCHEMA}]
    key = {"x-api-key": variables["ANTHROPIC_API_KEY"]}
    content = ask(variables["ANTHROPIC_BASE_URL"] + "/v1/messages", key, body)["content"]
    calls = [block for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": add(call["input"])} for call in calls]
    history += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    return calls


def responses(history):
    body = {"model": variables["MODEL"], "input": history, "store": False}
    body["tools"] = [{"type": "function", **ADD, "parameters": SCHEMA}]
    output = ask(variables["OPENAI_BASE_URL"] + "/responses", OPENAI, body)["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    results = [(call["call_id"], add(parsed(call["arguments"]))) for call in calls]
    history += [*output, *({"type": "function_call_output", "call_id": id, "output": text} for id, text in results)]
    return calls


history = [{"role": "user", "content": prompt}]
for _ in range(3):
    if not globals()[dialect](history):
        break
"""
GRADER = """
from osmosis import Grader


class Sum(Grader):
    async def grade(self, ctx):
        messages = ctx.sample.messages
        called = any(message.get("tool_calls") for message in messages)
        ctx.set_reward(float(called and str(messages[-1].get("content") or "").strip() == ctx.label))
"""


@pytest.fixture(scope="module")
def place(tiny_base: Path, trainer_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPlatform]:
    home, command = tmp_path_factory.mktemp("training"), f"{sys.executable} -m osmosis.jobs"
    with training_platform(home, trainer_cache, job_command=command) as made:
        made.ok("model", "upload", str(tiny_base), "--name", "tiny")
        rollout = made.folder / "rollouts" / "add"
        (rollout / "main.py").write_text(GRADER)
        (rollout / "folder").mkdir()
        (rollout / "folder" / "agent.py").write_text(PROGRAM)
        made.set(
            training__rollout_batch_size=ROLLOUTS // 8, advanced__max_steps=STEPS, advanced__validation_rows=4,
            checkpoints__eval_interval=STEPS, checkpoints__checkpoint_save_freq=STEPS,
        )  # fmt: skip
        yield made


def submit(place: TrainingPlatform, dialect: str) -> str:
    config = CONFIG.replace("add.toml", f"{dialect}.toml")
    command = f'command = ["python3", "agent.py", "{dialect}", "$PROMPT"]'
    written = (place.folder / CONFIG).read_text().replace('entrypoint = "main.py"', command)
    (place.folder / config).write_text(f'{written}\n[program]\nfolder = "rollouts/add/folder"\n')
    place.push()
    return place.submit("train", config)


async def test_the_curve_is_that_of_chat_whatever_the_dialect(place: TrainingPlatform) -> None:
    curves, tokens = {}, {}
    for dialect in DIALECTS:
        name = submit(place, dialect)
        assert await place.until_over(name) == "finished", place.log(name)
        curves[dialect] = place.curve(name, "rollout/raw_reward")
        tokens[dialect] = {
            (step, stored.row_index, stored.attempt): [
                (part.prompt_token_ids, part.completion_token_ids, part.mask) for part in stored.tokens
            ]
            for step in range(1, STEPS + 1)
            for stored in place.journal(name, step).stored()
        }
    assert list(curves["chat"]) == list(range(1, STEPS + 1))
    assert 0 < curves["chat"][1] < 1
    for dialect in DIALECTS[1:]:
        assert curves[dialect] == curves["chat"], dialect
        assert tokens[dialect] == tokens["chat"], dialect
