"""A run of a config on this machine: its variables and secrets are there again when it is resumed, and in no file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis.testing.command_line import CommandRun, run_command
from osmosis.testing.eval_project import write_rows
from osmosis.testing.git_workspace import GitWorkspace

pytestmark = pytest.mark.flow

ROLLOUT = """
import os
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.grader import Grader
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


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--rows", "0-3", "--limit", "2"], 2, "--rows and --limit cannot be used together"),
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
