"""Questions about arms on this machine: asked, answered, resumed; and what an arm can be."""

import json
from pathlib import Path

import pytest

from osmosis.cli.eval.plan import read_arms
from osmosis.errors import NotFound, OsmosisError, UsageError
from osmosis.local.viewing.library import LocalLibrary
from osmosis.local.viewing.server import render
from osmosis.records.config.run_config import EvalConfig
from osmosis.viewer import routes
from osmosis.viewer.page import QueryParams
from support.command_line import CommandRun, run_command
from support.eval_project import write_rows
from support.git_workspace import GitWorkspace

ROLLOUT = """
import os
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.workflow import AgentWorkflow, Grader

class Work(AgentWorkflow):
    async def run(self, ctx):
        with open("calls.txt", "a") as out:
            out.write("x")
        answer = ctx.prompts["task"] if os.environ.get("TOOLS") != "off" else "no"
        return [*ctx.prompt, {"role": "assistant", "content": answer}]

class Right(Grader):
    async def grade(self, ctx):
        sample = next(iter(ctx.get_samples().values()))
        ctx.set_reward(float(sample.messages[-1]["content"] == "yes"))

backend = LocalBackend(Work, grader=Right)
"""
CONFIG = EvalConfig.model_validate({
    "experiment": {"rollout": "multiply", "entrypoint": "main.py", "model_path": "m", "dataset": "multiply"},
    "secrets": {"required": []},
})  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = GitWorkspace(tmp_path)
    made.write("rollouts/multiply/main.py", ROLLOUT)
    made.write("rollouts/multiply/prompts/task.md", "yes\n")
    made.write("rollouts/multiply/prompts/terse.md", "no\n")
    write_rows(tmp_path / "data" / "multiply.jsonl", 30)
    return tmp_path


def decide(folder: Path, *words: str) -> CommandRun:
    return run_command("eval", "decide", *words, "--name", "d", "--yes", "--json", cwd=folder, environ={})


def test_questions_are_answered_and_the_runs_are_used_again(workspace: Path) -> None:
    asked = ("terse >= task - 0.1", "--arm", "prompt=task,terse")
    done = decide(workspace, *asked)
    assert done.code == 0, done.err
    data = done.json
    answers = [(item["question"], item["answer"]) for item in data["items"]]
    assert answers == [("prompt=terse >= prompt=task - 0.1", "no")]
    assert (data["rollouts"], data["planned_rollouts"]) == (42, 60)  # the first look, at 21 rows
    calls = (workspace / "calls.txt").read_text()
    assert calls == "x" * 42

    (workspace / ".osmosis" / "decisions" / "d.json").unlink()  # as if it had been interrupted before the first look
    again = decide(workspace, *asked)
    assert again.json == data
    assert (workspace / "calls.txt").read_text() == calls
    library = LocalLibrary([workspace / ".osmosis" / "runs"], workspace / "cache")
    page = render(routes.build_page(library, "decisions/d", QueryParams()))
    for text in (
        "prompt=terse &gt;= prompt=task - 0.1",
        "-1.000",
        "of at most 60",
        'href="/runs/d--prompt-task"',
        "not needed",
    ):
        assert text in page
    assert 'href="/decisions/d"' in render(routes.build_page(library, "decisions", QueryParams()))
    other = decide(workspace, "terse >= task - 0.2", *asked[1:])
    assert other.code == 2
    assert "began with other values of words" in json.dumps(other.error)


@pytest.mark.parametrize(
    ("arms", "changes"),
    [
        ("tools=on,off", {"env.TOOLS": "off"}),
        ("env.LEVEL=1,2", {"env.LEVEL": "2"}),
        ("temperature=0,1", {"advanced.params.temperature": "1"}),
        ("prompt=task,terse", {"env.PROMPT_TASK": "terse"}),
        ("max_turns=3,9", {"max_turns": "9"}),
        ("model=a,b", {"model": "b"}),
    ],
)
def test_an_arm_is_a_key_of_the_config_or_the_plan(workspace: Path, arms: str, changes: dict[str, str]) -> None:
    questions, own = read_arms([], [arms], CONFIG, workspace / "rollouts" / "multiply")
    assert own[questions[0].left] == changes


def test_a_name_that_is_no_arm_is_a_model(workspace: Path) -> None:
    words = ["b >= a - 0.1", "off >= on"]
    questions, changes = read_arms(words, ["tools=on,off"], CONFIG, workspace / "rollouts" / "multiply")
    assert [question.text for question in questions] == ["b >= a - 0.1", "tools=off >= tools=on"]
    assert changes["b"] == {"env.TOOLS": "on", "model": "b"}
    assert changes["a"] == changes["tools=on"]


@pytest.mark.parametrize(
    ("words", "arms", "error", "message"),
    [
        ([], ["search=on,off"], UsageError, "no file of multiply reads SEARCH"),
        ([], ["tools=on"], UsageError, "is not NAME=VALUE,VALUE"),
        ([], ["prompt=task,long"], NotFound, "there is no prompts/long.md"),
        ([], [], UsageError, "nothing is asked"),
        (["a >= a"], [], UsageError, "both sides are the same arm"),
        (["c >= b"], ["model=a,b"], UsageError, "c is no value of an arm"),
    ],
)
def test_what_is_no_arm_is_named(
    workspace: Path, words: list[str], arms: list[str], error: type[OsmosisError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_arms(words, arms, CONFIG, workspace / "rollouts" / "multiply")
