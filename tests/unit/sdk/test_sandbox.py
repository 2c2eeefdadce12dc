"""`ctx.sandbox` as agents, tools, graders and score functions meet it, in evaluations of this process."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from osmosis import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutAgentLoop,
    RolloutContext,
    RolloutResult,
    evaluate,
    get_sandbox,
    open_sandbox,
    tool,
)
from osmosis.errors import OsmosisError, SandboxUnavailable
from osmosis.records.run.rollout import Phase
from osmosis.records.sandbox import SandboxChoice
from osmosis.sandbox.session import Session, SessionKind
from osmosis.sdk.harbor.entrypoint import run as run_inside
from osmosis.sdk.harbor.handoff import ID_VARIABLE, KEY_VARIABLE, URL_VARIABLE
from osmosis.sdk.sandbox import Sandbox, opening_from
from support.waiting import until


async def test_one_is_opened_for_a_script_or_a_test() -> None:
    async with open_sandbox("none") as sandbox:
        done = await sandbox.run(["python", "main.py"], files={"main.py": "print(input())"}, stdin="hello\n")
        assert (done.ok, done.stdout, done.output) == (True, "hello\n", "hello")
        await sandbox.write_file("data/x.bin", b"\x00\xff")
        assert await sandbox.read_bytes("data/x.bin") == b"\x00\xff"
        assert await sandbox.list_files() == ["data/x.bin", "main.py"]
        assert get_sandbox() is sandbox
        async with sandbox.fresh() as other:
            assert await other.list_files() == []
        failed = await sandbox.run("echo out; echo err >&2; exit 3")
        assert (failed.exit_code, failed.output, failed.ok) == (3, "out\nerr", False)
        late = await sandbox.run("echo begun; sleep 60", timeout_s=2)
        assert (late.ended, late.output) == ("time", "begun\n[ended: limit of time]")
    with pytest.raises(RuntimeError, match="open_sandbox"):
        get_sandbox()
    with pytest.raises(SandboxUnavailable, match="is over"):
        await sandbox.run("true")


async def test_one_that_was_not_used_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with open_sandbox("none") as sandbox:
        assert sandbox.opened
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_command_ends(tmp_path: Path) -> None:
    async with open_sandbox("none") as sandbox:
        running = asyncio.create_task(sandbox.run(f"touch {tmp_path}/began; sleep 1; touch {tmp_path}/went-on"))
        await until((tmp_path / "began").exists, what="the command")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        again = await sandbox.run("sleep 2")
        assert again.ok
    assert not (tmp_path / "went-on").exists()


def rows(tmp_path: Path, count: int) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [{"user_prompt": f"{n}", "ground_truth": str(n * n), "system_prompt": ""} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@tool
def square(number: int) -> str:
    """Squares a number.

    Args:
        number: it
    """
    done = get_sandbox().run_blocking(["python", "square.py"], stdin=str(number))
    return done.output


class Squares(RolloutAgentLoop):
    name = "squares"

    def get_tools(self, request: Any) -> list[Any]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        number = ctx.request.messages[-1]["content"]
        await ctx.sandbox.write_file("square.py", "print(int(input()) ** 2)")
        answer = await square.invoke({"number": int(number)})
        await ctx.sandbox.write_file("answer.txt", answer)
        return ctx.complete([*ctx.request.messages, {"role": "assistant", "content": answer}])


async def graded_where_it_ran(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    files = await get_sandbox().list_files()
    return float(files == ["answer.txt", "square.py"] and await get_sandbox().read_file("answer.txt") == ground_truth)


@pytest.mark.usefixtures("isolated")
def test_agent_tools_and_score_functions_share_one_for_each_rollout(tmp_path: Path) -> None:
    run = evaluate(
        Squares(),
        rows(tmp_path, 6),
        model="offline/calculator",
        scorers=[graded_where_it_ran],
        concurrency=3,
        name="squares",
        base_dir=tmp_path,
    )
    assert run.report.completed == 6
    assert run.report.scores[0].mean == 1.0, run.report.failures


class Workflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
        await ctx.sandbox.write_file("answer.py", f"print({ctx.prompt[-1]['content']} ** 2)")
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]


class Clean(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        code = await ctx.sandbox.read_file("answer.py")
        async with ctx.sandbox.fresh() as clean:
            done = await clean.run(["python", "answer.py"], files={"answer.py": code})
        ctx.set_reward(float(done.stdout.strip() == ctx.label))


@pytest.mark.usefixtures("isolated")
def test_a_grader_runs_what_the_workflow_left(tmp_path: Path) -> None:
    run = evaluate(
        Workflow, rows(tmp_path, 2), model="offline/calculator", grader=Clean, name="graded", base_dir=tmp_path
    )
    assert run.report.scores[0].mean == 1.0, run.report.failures


def test_a_sandbox_that_does_not_work_is_a_failure_of_the_setup(tmp_path: Path) -> None:
    run = evaluate(
        Squares(),
        rows(tmp_path, 1),
        model="offline/calculator",
        scorers=[graded_where_it_ran],
        sandbox=SandboxChoice(kind="container", image="no-such-image-anywhere:1"),
        name="none",
        base_dir=tmp_path,
    )
    (failure,) = run.report.failures
    assert failure.phase is Phase.SETUP
    assert "container" in failure.example or "image" in failure.example


@pytest.mark.parametrize("said", ["level-9", "container"])
async def test_a_variable_that_names_none_says_so(said: str) -> None:
    with pytest.raises(OsmosisError, match=r"names no sandbox|needs an image"):
        await Sandbox(opening_from({"OSMOSIS_SANDBOX": said}, "", None)).run("true")


async def test_several_tools_at_once_open_one(tmp_path: Path) -> None:
    opened = []

    def opening() -> Session:
        opened.append(Session(SessionKind(parent=tmp_path)))
        return opened[-1]

    sandbox = Sandbox(opening)
    await asyncio.gather(*(sandbox.run("true") for _ in range(8)))
    await sandbox.close()
    assert len(opened) == 1
    assert list(tmp_path.iterdir()) == []


async def test_in_a_trial_it_is_the_trials_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Harbor the boundary is around the workflow: commands run in it, from its folder, without the key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.txt").write_text("the task's own file")
    request = {"workflow": f"{__name__}:Looks", "messages": [{"role": "user", "content": "?"}]}
    environ = {"PATH": os.defpath, ID_VARIABLE: "r1", KEY_VARIABLE: "value-of-the-key", URL_VARIABLE: "http://m/v1"}
    done = await run_inside(request, environ, tmp_path / "artifacts")
    assert done.sample is not None, done.err_message
    said = done.sample.messages[-1]["content"]
    assert said.startswith("the task's own file")
    assert "OSMOSIS_ROLLOUT_ID=r1" in said
    assert "value-of-the-key" not in said
    assert (tmp_path / "made.txt").read_text() == "kept"


class Looks(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
        await ctx.sandbox.write_file("made.txt", "kept")
        done = await ctx.sandbox.run("cat task.txt; env")
        return [*ctx.prompt, {"role": "assistant", "content": done.output}]
