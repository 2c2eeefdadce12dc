"""A program as an agent: its folder, HOME, key and model endpoint; what it leaves for graders."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import NotFound, ValidationError
from osmosis.llm.model import ChatRequest, Completion
from osmosis.records.run.plan import EvalPlan, ProgramSpec, RolloutLimits
from osmosis.records.run.rollout import Rollout, Usage
from osmosis.records.run.rows import Row
from osmosis.records.sandbox import SandboxChoice
from osmosis.sandbox import Level, probe
from osmosis.serve.client.program_agent import ProgramAgent, load_harnesses

from .support import SPEC, ScriptedModel, open_proxy, say

HARNESSES = load_harnesses()
AGENT = """
import json, os, pathlib, subprocess, sys, urllib.request

def ask(messages):
    body = {"model": os.environ["MODEL"], "max_tokens": 99, "messages": messages,
            "tools": [{"name": "bash", "input_schema": {"type": "object"}}]}
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
                                     {"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
    return json.load(urllib.request.urlopen(request))

messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    answer = ask(messages)
    messages.append({"role": "assistant", "content": answer["content"]})
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    if not calls:
        break
    results = []
    for call in calls:
        done = subprocess.run(call["input"]["command"], shell=True, capture_output=True, text=True)
        results.append({"type": "tool_result", "tool_use_id": call["id"], "content": done.stdout + done.stderr})
    messages.append({"role": "user", "content": results})
print(answer["content"][0]["text"])
"""
CONFINED = pytest.param(
    "auto", marks=pytest.mark.skipif(probe().level < Level.NAMESPACES, reason="no sandbox of level 1 here")
)


def writes_file(request: ChatRequest) -> Completion:
    if any(message["role"] == "tool" for message in request.messages):
        return say(f"done: {request.messages[-1]['content'].strip()}")
    arguments = '{"command": "echo new > made.txt; echo $HOME; cat old.txt; rm old.txt; cat $HOME/skill.md"}'
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return Completion(message=message, finish_reason="tool_calls", usage=Usage(prompt_tokens=9, completion_tokens=4))


async def run(
    base: Path,
    command: str,
    data: dict[str, Any],
    *,
    kind: Any = "none",
    model: Any = None,
    program: ProgramSpec | None = None,
    limits: RolloutLimits | None = None,
) -> Rollout:
    model = model or ScriptedModel(writes_file)
    surroundings = {"program": program or ProgramSpec(), "sandbox": SandboxChoice(kind=kind)}
    limits = limits or RolloutLimits()
    plan = EvalPlan(name="p", agent=f"command:{command}", model=SPEC, dataset="d", limits=limits, **surroundings)
    async with open_proxy(model) as proxy:
        agent = ProgramAgent(plan, proxy, base, os.environ)
        task = Task(Row(index=0, data={"user_prompt": "Make a file.", **data}), 0, "r1")
        return await agent.run(task, RolloutModel(model, task, plan))


@pytest.mark.parametrize("kind", ["none", CONFINED])
async def test_program_works_in_its_folder(tmp_path: Path, kind: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skill.md").write_text("a skill")
    data = {"files": {"old.txt": "old\n", "agent.py": AGENT}}
    program = ProgramSpec(home="home")
    rollout = await run(tmp_path, 'python3 agent.py "$PROMPT"', data, kind=kind, program=program)
    result = rollout.info["command"]
    assert rollout.failure is None, result
    assert (result["exit_code"], rollout.metrics["exit_code"]) == (0, 0.0)
    assert result["stdout"].startswith("done: ")
    assert result["stdout"].endswith("old\na skill\n")
    assert result["files"] == {"made.txt": "new\n"}
    assert "+++ b/made.txt\n" in result["diff"]
    assert "--- a/old.txt\n+++ /dev/null\n" in result["diff"]
    assert [message["role"] for message in rollout.messages] == ["user", "assistant", "tool", "assistant"]
    assert (rollout.usage.completion_tokens, rollout.num_tool_calls) == (7, 1)


async def test_nothing_of_the_operator_reaches_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_OPERATOR", "s3cret")
    monkeypatch.setenv("WANTED", "yes")
    rollout = await run(tmp_path, "env", {}, program=ProgramSpec(environ=["WANTED"]), model=ScriptedModel())
    said = rollout.info["command"]["stdout"]
    assert "s3cret" not in said
    assert "WANTED=yes" in said
    assert f"HOME={Path.home()}\n" not in said
    assert rollout.messages[-1] == {"role": "assistant", "content": said}


async def test_program_starts_from_a_git_ref(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=u", "-c", "user.email=e@x", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "code.txt").write_text("first\n")
    git("add", ".")
    git("commit", "-qm", "one")
    git("tag", "v1")
    (tmp_path / "code.txt").write_text("second\n")
    rollout = await run(tmp_path, "cat code.txt; echo more >> code.txt", {"git_ref": "v1"})
    result = rollout.info["command"]
    assert (result["stdout"], result["files"]) == ("first\n", {"code.txt": "first\nmore\n"})
    assert " first\n+more\n" in result["diff"]


@pytest.mark.parametrize(
    ("command", "words"),
    [("no-such-program-here", "exit status 127"), ("echo broken >&2; exit 3", "exit status 3: broken")],
)
async def test_program_that_asked_nothing_and_failed_is_a_failure(tmp_path: Path, command: str, words: str) -> None:
    rollout = await run(tmp_path, command, {})
    assert rollout.failure is not None
    assert words in rollout.failure.message


async def test_limits_hold_at_the_gate(tmp_path: Path) -> None:
    """A program that ends in an error because its rollout may ask no more has no failure: it is scored as it is."""
    data = {"files": {"agent.py": AGENT}}
    rollout = await run(tmp_path, 'python3 agent.py "$PROMPT"', data, limits=RolloutLimits(max_turns=1))
    assert (rollout.failure, rollout.finish_reason) == (None, "max_turns")
    assert rollout.info["command"]["exit_code"] != 0
    assert rollout.info["command"]["files"] == {"made.txt": "new\n"}


STUB = """#!/bin/sh
echo "$0 $@"; cat $(find "$HOME" -type f ! -name .prompt ! -name '*.py'); env
"""


@pytest.mark.parametrize("name", sorted(HARNESSES.keys() - {"openhands"}))
async def test_ready_made_agents_get_prompt_url_and_key(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs themselves are tried by `make harnesses`; here each is a stub that shows what it got."""
    program = tmp_path / HARNESSES[name].command.split()[0]
    program.write_text(STUB)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rollout = await run(tmp_path, name, {})
    said = rollout.info["command"]["stdout"]
    assert str(program) in said
    assert "Make a file." in said
    assert re.search(r"http://127.0.0.1:\d+/v1/rollouts/r1", said)
    assert "@URL@" not in said


OUTSIDE = {
    "row 0: files: ../secret leads out": {"files": "../secret"},
    "row 0: files: .* leads out": {"files": "/etc"},
    "row 0: files: link leads out": {"files": "link"},
    "row 0: files: '../made.txt' is not a path": {"files": {"../made.txt": "x"}},
    "row 0: files: /made.txt is not in": {"files": {"/made.txt": "x"}},
    "row 0: files: folder/made.txt cannot be written": {"files": {"folder/made.txt": "x"}},
    "program.folder: link leads out": ProgramSpec(folder="link"),
    "program.home: ../secret leads out": ProgramSpec(home="../secret"),
    "program.home: .codex/config.toml cannot be written": ProgramSpec(home="home"),
}


@pytest.mark.parametrize("words", OUTSIDE)
async def test_nothing_leads_out_of_the_workspace(tmp_path: Path, words: str) -> None:
    """Neither paths of a row or of the plan, nor links in copied folders, read or write elsewhere."""
    base, secret = tmp_path / "base", tmp_path / "secret"
    for folder in (base / "home", base / "template", secret):
        folder.mkdir(parents=True)
    (secret / "key.txt").write_text("s3cret")
    for link in ("link", "template/folder", "home/.codex"):
        (base / link).symlink_to(secret)
    given = OUTSIDE[words]
    program = given if isinstance(given, ProgramSpec) else ProgramSpec(folder="template")
    data = given if isinstance(given, dict) else {}
    with pytest.raises(ValidationError, match=words):
        await run(base, "codex", data, program=program)
    assert [path.name for path in secret.iterdir()] == ["key.txt"]


async def test_links_in_the_way_are_replaced(tmp_path: Path) -> None:
    base, secret = tmp_path / "base", tmp_path / "secret"
    for folder in (base / "home/.codex", base / "template", base / "more/folder", secret):
        folder.mkdir(parents=True)
    (secret / "key.txt").write_text("s3cret")
    (base / "template/folder").symlink_to(secret)
    (base / "home/.codex/config.toml").symlink_to(secret / "key.txt")
    (base / "more/folder/key.txt").write_text("new")
    program = ProgramSpec(folder="template", home="home")
    await run(base, "codex", {"files": "more"}, program=program)
    assert (secret / "key.txt").read_text() == "s3cret"


async def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="arms/skill"):
        await run(tmp_path, "true", {}, program=ProgramSpec(home="arms/skill"))
