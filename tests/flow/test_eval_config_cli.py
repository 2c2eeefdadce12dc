"""A run of a config on this machine: its variables and secrets are there again when it is resumed, and in no file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandRun, run_command
from support.endpoint import ModelEndpoint
from support.eval_project import write_rows
from support.git_workspace import GitWorkspace

ROLLOUT = """
import os
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.workflow import Grader
from osmosis.sdk.workflow import AgentWorkflow

class Work(AgentWorkflow):
    async def run(self, ctx):
        assert os.environ["EVAL_MODE"] == "strict"
        assert os.environ["EVAL_TOKEN"]
        if os.path.exists("broken") and "is 4" in str(ctx.prompt):
            raise RuntimeError("refused with " + os.environ["EVAL_TOKEN"])
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]

class Right(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)

backend = LocalBackend(Work, grader=Right)
"""
CONFIG = """
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "offline/calculator"
dataset = "multiply"

[env]
EVAL_MODE = "strict"

[secrets]
required = ["EVAL_TOKEN"]
"""
TOKEN = "token-of-the-eval"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    made = GitWorkspace(tmp_path)
    made.write("rollouts/multiply/main.py", ROLLOUT)
    made.write("configs/eval/multiply.toml", CONFIG)
    made.write("secrets.env", f"EVAL_TOKEN={TOKEN}\n")
    write_rows(tmp_path / "data" / "multiply.jsonl", 10)
    yield tmp_path
    forget()


def forget() -> None:
    """What the last command left in this process; a person's next command is another one."""
    for name in ("EVAL_MODE", "EVAL_TOKEN"):
        os.environ.pop(name, None)


def go(folder: Path, *words: str, **environ: str) -> CommandRun:
    forget()
    return run_command(*words, "--json", cwd=folder, environ=environ)


def test_a_resume_has_the_configs_variables_and_wants_its_secrets(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    (workspace / "broken").touch()
    first = go(workspace, "eval", "run", "multiply", "--name", "r", "--secrets-file", "secrets.env")
    assert first.code == 0, first.err
    assert first.json["data"]["summary"]["failed"] == 1
    (workspace / "broken").unlink()

    forgotten = go(workspace, "eval", "resume", "r", "--retry-failed")
    assert forgotten.error["details"]["missing"] == ["EVAL_TOKEN"]
    assert "--secrets-file" in forgotten.error["details"]["hint"]
    again = go(workspace, "eval", "resume", "r", "--retry-failed", "--secrets-file", "secrets.env")
    assert again.code == 0, again.err
    summary = again.json["data"]["summary"]
    assert (summary["completed_runs"], summary["failed"], summary["failures"]) == (10, 0, [])
    assert go(workspace, "eval", "resume", "r", EVAL_TOKEN=TOKEN).code == 0
    for path in (workspace / ".osmosis").rglob("*"):
        if path.is_file():
            assert TOKEN not in path.read_text(), path


ASKS = """
from osmosis import AgentWorkflow, Grader, LocalBackend, RolloutAgentLoop

class Work(AgentWorkflow):
    async def run(self, ctx):
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            messages.append((await chat.complete(messages)).message)
        return messages

class Right(Grader):
    async def grade(self, ctx):
        ctx.set_reward(0.25)

backend = LocalBackend(Work, grader=Right)
"""
LOOP = """
from osmosis import RolloutAgentLoop

class Chat(RolloutAgentLoop):
    name = "chat"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = [*ctx.request.messages, {"role": "assistant", "content": "done"}]
        return ctx.complete(messages, reward=0.75)

agent = Chat()
"""


def test_a_test_asks_the_configs_endpoint_with_its_parameters(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    (workspace / "rollouts/multiply/main.py").write_text(ASKS)
    with ModelEndpoint() as endpoint:
        advanced = f'[advanced]\nbase_url = "{endpoint.url}"\n[advanced.params]\ntemperature = 0.125\n'
        config = CONFIG.replace("offline/calculator", "my-model") + advanced
        (workspace / "configs/eval/multiply.toml").write_text(config)
        run = go(workspace, "test", "multiply", "--limit", "2", EVAL_TOKEN=TOKEN)
        asked = [body for body in endpoint.requests if body.get("max_tokens") != 1]
    assert run.code == 0, run.err
    assert [one["reward"] for one in run.json["data"]["results"]] == [0.25, 0.25]
    assert [(body["model"], body["temperature"]) for body in asked[-2:]] == [("my-model", 0.125)] * 2

    # Without the required secret it runs, and says that it is not there; a model of one's own replaces the config's.
    other = go(workspace, "test", "multiply", "--limit", "1", "--model", "offline/calculator")
    assert other.code == 0, other.err
    assert "not set here: EVAL_TOKEN" in other.err


def test_an_agent_loop_of_a_config_brings_its_reward(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    (workspace / "rollouts/multiply/main.py").write_text(LOOP)
    run = go(workspace, "eval", "run", "multiply", "--limit", "3", EVAL_TOKEN=TOKEN)
    assert run.code == 0, run.err
    assert run.json["data"]["summary"]["reward"]["mean"] == 0.75


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--rows", "0-3", "--limit", "2"], 2, "--rows and --limit cannot be used together"),
        (["--export", "otlp", "--on", "http://127.0.0.1:9"], 2, "--export and --on cannot be used together"),
        (["--fail-under", "nan"], 2, "--fail-under must be a finite number"),
        (["--base-url", "http://127.0.0.1:9/v1"], 2, "--base-url would not be used"),
        (["--model", ""], 2, "the model name is empty"),
        (["--name", ""], 2, "is not a valid run name"),
        (["--rows", "90"], 1, "no row 90"),
        (["--dataset-file", "nothing.jsonl"], 1, "no such dataset file"),
    ],
)
def test_wrong_lines_say_what_to_type(workspace: Path, words: list[str], code: int, said: str) -> None:
    ran = go(workspace, "eval", "run", "multiply", *words, EVAL_TOKEN=TOKEN)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert not (workspace / ".osmosis" / "runs").exists() or not list((workspace / ".osmosis" / "runs").iterdir())


def test_an_agent_by_flags_is_not_run_elsewhere_but_the_command_that_is_said(workspace: Path) -> None:
    url = "https://osmosis.example.com"
    flags = ("-d", "data/multiply.jsonl", "--on", url)
    agent = ("-m", "rollouts/multiply/main.py:backend", "--model", "offline/calculator", "--limit", "3")
    hint = go(workspace, "eval", *agent, *flags, "--json").error["details"]["hint"]
    assert hint == f"osmosis eval run configs/eval/multiply.toml --on {url} --model offline/calculator --limit 3"
    # It is a command that is taken: only the platform is missing.
    assert go(workspace, *hint.split()[1:], "--json").error["code"] == "AUTH_REQUIRED"
    elsewhere = workspace / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".git").mkdir()
    refused = go(elsewhere, "eval", *agent, *flags, "--json")
    assert refused.code == 2
    assert "osmosis init --here --platform" in refused.error["details"]["hint"]


PROGRAM = """
[experiment]
rollout = "multiply"
command = ["python3", "ask.py", "$PROMPT"]
model_path = "offline/calculator"
dataset = "multiply"

[program]
folder = "rollouts/multiply/folder"
env = ["EVAL_TOKEN"]

[env]
EVAL_MODE = "strict"

[secrets]
required = ["EVAL_TOKEN"]
"""
ASKS_OVER_HTTP = """
import json, os, sys, urllib.request
assert os.environ["EVAL_MODE"] == "strict" and os.environ["EVAL_TOKEN"]
body = {"model": os.environ["MODEL"], "max_tokens": 99, "messages": [{"role": "user", "content": sys.argv[1]}]}
headers = {"Authorization": "Bearer " + os.environ["ANTHROPIC_API_KEY"]}
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(), headers)
open("answer.txt", "w").write(json.load(urllib.request.urlopen(request))["content"][0]["text"])
"""
GRADES_FILES = """
from osmosis import Grader

class Wrote(Grader):
    async def grade(self, ctx):
        left = ctx.metadata["command"]
        answer = left["files"]["answer.txt"]
        assert answer == ctx.sample.messages[-1]["content"]
        ctx.set_reward(0.5 if left["exit_code"] == 0 and ctx.metadata["user_prompt"] and ctx.label else 0.0)
"""


def test_a_config_with_a_command(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    config = workspace / "configs/eval/multiply.toml"
    config.write_text(PROGRAM)
    (workspace / "rollouts/multiply/main.py").write_text(GRADES_FILES)
    refused = go(workspace, "eval", "run", "multiply", EVAL_TOKEN=TOKEN)
    assert "program.folder: there is no folder" in refused.error["details"]["issues"][0]["message"]
    (workspace / "rollouts/multiply/folder").mkdir()
    (workspace / "rollouts/multiply/folder/ask.py").write_text(ASKS_OVER_HTTP)
    ran = go(workspace, "eval", "run", "multiply", "--limit", "3", EVAL_TOKEN=TOKEN)
    assert ran.code == 0, ran.err
    summary = ran.json["data"]["summary"]
    assert (summary["completed_runs"], summary["failures"]) == (3, [])
    assert summary["reward"]["mean"] == 0.5
    assert go(workspace, "test", "multiply").error["details"]["hint"] == "osmosis eval run multiply --limit 1"
