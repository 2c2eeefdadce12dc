"""`osmosis check` and `osmosis test`: batch, output, failures, and stepping through a row."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from osmosis.cli.agent_test import step_through
from osmosis.cli.core.context import AppContext, GlobalOptions
from osmosis.cli.core.output import Mode, Output
from osmosis.cli.main import main
from osmosis.local.prepare import prepare
from osmosis.local.run_options import RunOptions
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.sdk.tools import ToolLoop, tool

AGENT = """
from osmosis import AgentWorkflow, Grader, RolloutAgentLoop, tool
from osmosis.sdk.tools import ToolLoop
from osmosis.sdk.tools import run_tool_calls

@tool
async def multiply(a: float, b: float) -> float:
    "Multiply."
    return a * b

loop = ToolLoop([multiply], name="calc")

class Breaks(RolloutAgentLoop):
    name = "breaks"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        ctx.log_event("start", row=ctx.request.metadata["row_index"])
        if ctx.request.metadata["row_index"] == 1:
            raise RuntimeError("broken on [/red] purpose")
        if ctx.request.metadata.get("leaves"):
            raise SystemExit(7)
        answer = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, answer.message], reward=0.5)

class Flow(AgentWorkflow):
    async def run(self, ctx):
        async with ctx.chat() as chat:
            answer = await chat.complete(ctx.prompt)
        return [*ctx.prompt, answer.message]

class Judge(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)

class Late(AgentWorkflow):
    def run(self, ctx):
        return []
"""


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    # The module's name is the test's: modules stay loaded between tests of one process.
    (tmp_path / f"{name_of(request)}.py").write_text(AGENT)
    rows = [
        {"system_prompt": "calc", "user_prompt": f"What is {i + 2} * 3?", "ground_truth": str((i + 2) * 3)}
        for i in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def name_of(request: pytest.FixtureRequest) -> str:
    return "agent_" + "".join(c if c.isalnum() else "_" for c in request.node.name)


def run(folder: Path, *words: str) -> int:
    return main(["--json", *words], environ={}, cwd=folder)


def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)["data"]


def test_validate(folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    module = name_of(request)
    assert run(folder, "validate", "-m", f"{module}:loop") == 0
    data = shown(capsys)
    assert (data["name"], data["tool_count"], data["tools"]) == ("calc", 1, ["multiply"])
    assert run(folder, "validate", f"{module}:Flow") == 0
    assert (shown(capsys)["kind"]) == "workflow and grader"
    assert run(folder, "validate", "-m", f"{module}:Late") == 1
    assert shown(capsys)["issues"][0]["code"] == "WORKFLOW_RUN_NOT_ASYNC"
    assert run(folder, "validate", "-m", f"{module}:nothing") == 1
    assert run(folder, "validate") == 2
    assert main(["validate", "-m", f"{module}:loop", "-v"], environ={}, cwd=folder) == 0
    assert "agent loop calc is valid, 1 tool(s)" in capsys.readouterr().out


def test_rows_run_and_failures_have_reasons(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["test", "-m", f"{name_of(request)}:Breaks", "-d", "rows.jsonl", "--model", "offline/calculator"]
    assert run(folder, *words, "-o", "out/r.json", "--debug", "--concurrency", "3") == 1
    data = shown(capsys)
    written = json.loads((folder / "out" / "r.json").read_text())
    assert written == {key: data[key] for key in ("summary", "results")}
    assert {key: written["summary"][key] for key in ("total", "passed", "failed")} == {
        "total": 4,
        "passed": 3,
        "failed": 1,
    }
    assert [one["row_index"] for one in written["results"]] == [0, 1, 2, 3]
    bad = written["results"][1]
    assert (bad["success"], bad["reward"]) == (False, None)
    assert "broken on [/red] purpose" in bad["error"]
    good = written["results"][0]
    assert (good["reward"], good["token_usage"]["num_llm_calls"]) == (0.5, 1)
    assert len(list((folder / "test_debug").glob("row-*.json"))) == 4
    traces = [json.loads(line) for path in (folder / "test_debug").glob("*.jsonl") for line in path.open()]
    assert sorted(line["row"] for line in traces) == [0, 1, 2, 3]


def test_a_row_whose_grader_raises_did_not_end_well(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"{name_of(request)}_scores.py").write_text(
        "def f(solution_str, ground_truth, extra_info=None):\n    1 / 0\n"
    )
    words = ["test", "-m", f"{name_of(request)}:loop", "-d", "rows.jsonl", "--model", "offline/calculator"]
    assert run(folder, *words, "--limit", "1", "--eval-fn", f"{name_of(request)}_scores:f") == 1
    data = shown(capsys)
    assert (data["summary"]["passed"], data["summary"]["failed"]) == (0, 1)
    assert "division by zero" in data["results"][0]["error"]


def test_an_agent_that_exits_fails_its_row_only(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"user_prompt": "go", "ground_truth": "1", "leaves": true}\n')
    words = ["test", "-m", f"{name_of(request)}:Breaks", "-d", "rows.jsonl", "--model", "offline/calculator"]
    assert run(folder, *words, "--offset", "2") == 1
    data = shown(capsys)
    assert [one["success"] for one in data["results"]] == [True, True, False]
    assert "SystemExit(7)" in data["results"][2]["error"]


def test_bad_rows_can_be_left_out(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write("no row\n")
    words = ["test", "-m", f"{name_of(request)}:Breaks", "-d", "rows.jsonl", "--model", "offline/calculator"]
    assert run(folder, *words, "--offset", "3") == 1
    assert "--skip-bad-rows" in capsys.readouterr().err
    assert run(folder, *words, "--offset", "3", "--skip-bad-rows") == 0
    assert [one["row_index"] for one in shown(capsys)["results"]] == [3]


def test_people_see_lines_and_a_summary(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["test", "-m", f"{name_of(request)}:Breaks", "-d", "rows.jsonl", "--model", "offline/calculator"]
    assert main([*words, "--limit", "2"], environ={}, cwd=folder) == 1
    captured = capsys.readouterr()
    assert "[2/2] Row 1: FAILED" in captured.err
    assert "broken on [/red] purpose" in captured.err
    assert "1 of 2 rows ended well" in captured.out
    assert main([*words, "--offset", "2", "-q"], environ={}, cwd=folder) == 0
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_few_rows_are_shown_whole_and_graded_by_what_is_given(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "scores_of_a_test.py").write_text(
        "from osmosis import Score\ndef half(solution_str, ground_truth, extra_info): return Score(0.5, 'so so')\n"
    )
    words = ["test", "-m", f"{name_of(request)}:loop", "-d", "rows.jsonl", "--model", "offline/calculator"]
    words += ["--eval-fn", "scores_of_a_test:half", "--limit", "2"]
    assert main(words, environ={}, cwd=folder) == 0
    captured = capsys.readouterr()
    for said in ("\nuser\n", "\nassistant, ", "expected  ", "scores_of_a_test:half  0.5", "so so"):
        assert said in captured.err
    assert "scores_of_a_test:half 0.5 on average" in captured.out
    assert main([*words, "--brief"], environ={}, cwd=folder) == 0
    captured = capsys.readouterr()
    assert "\nuser\n" not in captured.err
    assert "scores_of_a_test:half 0.5)" in captured.err
    assert run(folder, *words) == 0
    assert [one["scores"] for one in shown(capsys)["results"]] == [{"scores_of_a_test:half": 0.5}] * 2


def test_workflows_are_run_and_graded(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["test", "-m", f"{name_of(request)}:Flow", "-d", "rows.jsonl", "--model", "offline/calculator"]
    assert run(folder, *words) == 0
    assert [one["reward"] for one in shown(capsys)["results"]] == [1.0] * 4


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--row", "1"], 2),
        (["-d", "none.jsonl"], 1),
        (["--limit", "0"], 2),
        (["--offset", "-1"], 2),
        (["--max-turns", "0"], 2),
        (["--offset", "9"], 1),
        (["--temperature", "9"], 2),
        (["--concurrency", "0"], 2),
        (["--mcp", "x"], 2),
        (["-o", "."], 1),
        (["-i"], 1),
    ],
)
def test_wrong_lines_are_refused(folder: Path, request: pytest.FixtureRequest, words: list[str], code: int) -> None:
    base = ["test", "-m", f"{name_of(request)}:loop", "-d", "rows.jsonl", "--model", "offline/calculator"]
    assert run(folder, *base, *words) == code


def test_a_missing_key_is_said_before_anything_runs(
    folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "test", "-m", f"{name_of(request)}:loop", "-d", "rows.jsonl") == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert "OPENAI_API_KEY is not set" in error["message"]
    assert "offline/calculator" in error["details"]["hint"]


@tool
async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class Interrupted(io.StringIO):
    """A keyboard on which somebody presses Ctrl-C."""

    def readline(self, *_: Any) -> str:  # type: ignore[override]
        signal.raise_signal(signal.SIGINT)
        return "n\n"


def step(tmp_path: Path, typed: str, row: int | None = None, stdin: io.StringIO | None = None) -> str:
    """What a person sees who types these lines."""
    rows = [{"user_prompt": f"What is {i + 2} * 3?", "ground_truth": "0"} for i in range(3)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    out = io.StringIO()
    output = Output(Mode.RICH, environ={}, stdout=out, stderr=out)
    ctx = AppContext({}, tmp_path, GlobalOptions(), output, stdin=stdin or io.StringIO(typed))
    plan = EvalPlan(name="t", agent="x", model=ModelSpec.parse("offline/calculator"), dataset=str(path), max_turns=5)
    options = RunOptions(tmp_path, None, {}, agent=ToolLoop([multiply]), needs_scores=False)
    assert step_through(ctx, prepare(plan, options), "calc", row) == 0
    return out.getvalue()


def test_stepping_shows_every_turn_and_obeys_every_key(tmp_path: Path) -> None:
    seen = step(tmp_path, "t\nm\nwhat\nn\nc\nm\nq\n", row=1)
    assert "multiply(a: " in seen
    assert '-> multiply({"a":3,"b":3})' in seen
    assert "turn 1, tool_calls" in seen
    assert "turn 2, stop" in seen
    assert "n next (Enter)" in seen
    assert "ended: stop" in seen


@pytest.mark.parametrize("key", ["", "n", "next"])
def test_next(tmp_path: Path, key: str) -> None:
    assert "ended: stop" in step(tmp_path, f"0\n{key}\n{key}\n\nq\n")


@pytest.mark.parametrize("key", ["c", "continue"])
def test_continue_asks_no_more(tmp_path: Path, key: str) -> None:
    assert step(tmp_path, f"r 0\n{key}\n\nq\n").count("n, c, m, t, q >") == 1


@pytest.mark.parametrize("key", ["q", "quit", "exit"])
def test_quit_leaves_the_row_and_the_session_goes_on(tmp_path: Path, key: str) -> None:
    seen = step(tmp_path, f"row 2\n{key}\n7\nnonsense\n{key}\n")
    assert "left this row" in seen
    assert "there is no row 7: rows 0 to 2 are loaded" in seen
    assert "a row number, r N, or q to leave" in seen


def test_end_of_input_is_quit(tmp_path: Path) -> None:
    assert "left this row" in step(tmp_path, "", row=0)


def test_ctrl_c_is_quit_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert "left this row" in step(tmp_path, "", row=0, stdin=Interrupted())
    assert signal.getsignal(signal.SIGINT) is before
