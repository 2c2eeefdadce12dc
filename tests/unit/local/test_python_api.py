"""`osmosis.evaluate` as Python code calls it: objects, rows in memory, a running loop, the same name again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import typing
from pathlib import Path
from typing import Any

import pytest

from osmosis import Budget, EvalPlan, ModelSpec, RolloutAgentLoop, Run, Selection, evaluate, evaluate_async
from osmosis.cli.main import main
from osmosis.errors import Conflict, DatasetError, NotFound, UsageError, ValidationError
from osmosis.local.evaluate import EvaluateOptions
from osmosis.local.run_options import RunOptions, Watcher, key_for
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from support.endpoint import ModelEndpoint
from support.eval_project import AGENT, ROLLOUT, SCORE, write_rows

ROWS = [{"user_prompt": f"What is {i} * 7?", "ground_truth": str(i * 7)} for i in range(5)]


class Chat(RolloutAgentLoop):
    name = "chat"

    def get_tools(self, request: Any) -> list[Any]:
        return []

    async def run(self, ctx: Any) -> Any:
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)


def exact(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return 1.0 if solution_str.rpartition("#### ")[2] == ground_truth else 0.0


async def polite(messages: list[Any], ground_truth: str, metadata: Any) -> float:
    return 0.5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_keywords_are_the_fields_of_the_plan() -> None:
    hints = typing.get_type_hints(EvaluateOptions, include_extras=True, localns={"GraderClass": type})
    positional = {"agent", "dataset", "model", "score_fns"}
    computed = {"dataset_hash", "provenance", "branch"}
    of_plan = set(EvalPlan.model_fields) - positional - computed
    assert {name: hints[name] for name in of_plan} == {n: EvalPlan.model_fields[n].annotation for n in of_plan}
    of_run = {field.name for field in dataclasses.fields(RunOptions)}
    assert set(hints) - of_plan - of_run == {"base_url", "api_key_env", "accept_changes"}
    with pytest.raises(TypeError, match="'attemts'"):
        evaluate(Chat(), ROWS, model="offline/calculator", attemts=3)  # type: ignore[call-arg]


def test_objects_rows_in_memory_and_an_endpoint(folder: Path) -> None:
    with ModelEndpoint() as endpoint:
        run = evaluate(
            Chat(),
            (row for row in ROWS),
            scorers=[exact, polite],
            model="m",
            base_url=endpoint.url,
            attempts=2,
            concurrency=4,
            selection=Selection(limit=4),
        )
        assert len(endpoint.requests) == 9  # one probe
    assert run.folder.parent == folder / ".osmosis" / "runs"
    assert (run.report.total, run.report.completed, len(run.rollouts)) == (8, 8, 8)
    assert [score.name.rpartition(":")[2] for score in run.report.scores] == ["exact", "polite"]
    assert run.report.scores[1].mean == 0.5
    kept = list(run.rollouts)
    assert all(isinstance(rollout, Rollout) for rollout in kept)
    assert sorted(rollout.key for rollout in run.rollouts) == sorted(rollout.key for rollout in kept)
    assert Run.open(run.name).report == run.report


PROMPTED = """
from osmosis import AgentWorkflow, RolloutAgentLoop

class Chat(RolloutAgentLoop):
    name = "chat"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        return ctx.complete([{"role": "user", "content": ctx.prompts["task"]}], reward=len(ctx.prompts))

class Work(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "user", "content": ctx.prompts[ctx.metadata.get("prompt", "task")]}]
"""


@pytest.mark.parametrize("attribute", ["Chat", "Work"])
def test_agents_find_their_prompts_beside_their_code_or_above(folder: Path, attribute: str) -> None:
    for path, text in (("pyproject.toml", ""), ("prompts/task.md", "\nMultiply.\n"), ("agents/code.py", PROMPTED)):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    run = evaluate(f"agents/code.py:{attribute}", ROWS[:1], model="offline/echo", scorers=[polite], name=attribute)
    assert [rollout.messages[0]["content"] for rollout in run.rollouts] == ["Multiply."]
    if attribute == "Work":
        rows = [{**ROWS[0], "prompt": "tone"}]
        [rollout] = evaluate(f"agents/code.py:{attribute}", rows, model="offline/echo", scorers=[polite]).rollouts
        message = f"there is no prompt 'tone': write {folder / 'prompts' / 'tone.md'}; there are: task"
        assert rollout.failure is not None
        assert message in rollout.failure.message


async def test_it_works_inside_a_running_loop(folder: Path) -> None:
    run = evaluate(Chat, ROWS, scorers=exact, model="offline/calculator")
    assert run.report.completed == 5


async def test_several_at_once_on_the_running_loop(folder: Path) -> None:
    runs = await asyncio.gather(
        *(evaluate_async(Chat(), ROWS, scorers=exact, model=f"offline/{m}", name=m) for m in ("calculator", "echo"))
    )
    assert [(run.name, run.report.completed) for run in runs] == [("calculator", 5), ("echo", 5)]
    better = runs[0].compare("echo")
    assert better.difference > 0
    assert better.pairs == 5


def test_runs_are_found_where_they_are_kept(folder: Path) -> None:
    given: dict[str, Any] = {"scorers": exact, "model": "offline/calculator", "runs_dir": folder / "elsewhere"}
    run = evaluate(Chat(), ROWS, **given, name="one")
    evaluate(Chat(), ROWS, **given, name="two")
    assert run.folder == folder / "elsewhere" / "one"
    assert run.compare("two").pairs == run.compare(folder / "elsewhere" / "two").pairs == 5


def test_the_same_name_goes_on_and_asks_nothing_again(folder: Path) -> None:
    with ModelEndpoint() as endpoint:
        asked = {"model": ModelSpec.parse("m", base_url=endpoint.url), "scorers": exact, "name": "nightly"}
        first = evaluate(Chat(), ROWS, **asked, concurrency=1, budget=Budget(max_total_tokens=1))
        assert first.report.stopped
        so_far = len(endpoint.requests)
        second = evaluate(Chat(), ROWS, **asked)
        assert second.report.completed == 5
        assert so_far < len(endpoint.requests) < so_far + 6
        done = len(endpoint.requests)
        assert evaluate(Chat(), ROWS, **asked).report.completed == 5
        assert len(endpoint.requests) == done


def test_changed_inputs_are_refused_unless_agreed_to(folder: Path) -> None:
    given: dict[str, Any] = {"model": "offline/calculator", "scorers": exact, "name": "n"}
    evaluate(Chat(), ROWS, **given)
    edited = [{**row, "user_prompt": row["user_prompt"] + " "} for row in ROWS]
    with pytest.raises(Conflict, match="the inputs of run n have changed"):
        evaluate(Chat(), edited, **given)
    asked = []
    assert evaluate(Chat(), edited, **given, confirm=lambda q: asked.append(q) or True).report.completed == 5
    assert asked == ["Continue with this plan?"]
    assert evaluate(Chat(), ROWS, **given, accept_changes=True).report.completed == 5
    # What was refused left the rows of the run alone, for its regrade.
    assert len(list((folder / ".osmosis/runs/n").glob("rows-*.jsonl"))) == 2


def test_names_are_those_of_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "api_project_agent.py").write_text(AGENT)
    (folder / "api_project_score.py").write_text(SCORE)
    write_rows(folder / "rows.jsonl", 4)
    run = evaluate(
        "api_project_agent:agent",
        "rows.jsonl",
        scorers="api_project_score:exact",
        model="offline/calculator",
        name="both",
        baselines=["offline/echo"],
    )
    assert list(run.baselines) == ["offline/echo"]
    beside = run.baselines["offline/echo"]
    assert isinstance(beside, Run)
    assert run.compare(beside).pairs == 4
    assert main(["--json", "eval", "resume", "both"], environ={}, cwd=folder) == 0
    shown = json.loads(capsys.readouterr().out)["data"]
    assert shown["summary"]["completed_runs"] == 4
    assert main(["eval", "regrade", "both", "-q"], environ={}, cwd=folder) == 0
    from api_project_score import exact as imported  # type: ignore[import-not-found]

    assert evaluate(
        "api_project_agent:agent", Path("rows.jsonl"), scorers=[imported], model="offline/calculator", name="both"
    ).plan.score_fns == ["api_project_score:exact"]


def test_a_run_whose_key_is_also_its_models_name_is_resumed(folder: Path) -> None:
    (folder / "api_project_agent.py").write_text(AGENT)
    (folder / "api_project_score.py").write_text(SCORE)
    write_rows(folder / "rows.jsonl", 3)
    environ = {"ENDPOINT_KEY": "tiny-model", "OTHER": "a-real-secret"}
    asked: list[int] = []
    with ModelEndpoint(lambda _, number: asked.append(number)) as endpoint:
        words = ["eval", "-m", "api_project_agent:agent", "-d", "rows.jsonl", "--eval-fn", "api_project_score:exact"]
        words += ["--model", "tiny-model", "--base-url", endpoint.url, "--api-key-env", "ENDPOINT_KEY", "--name", "k"]
        main([*words, "--secret", "OTHER"], environ=environ, cwd=folder)
        before = len(asked)
        main(["eval", "resume", "k"], environ=environ, cwd=folder)
        assert len(asked) == before > 0, "nothing is asked again"
    stored = json.loads((folder / ".osmosis/runs/k/run.json").read_text())
    assert stored["plan"]["model"]["name"] == "tiny-model"


def test_what_lives_only_here_is_resumed_only_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def made_here(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        return 1.0

    evaluate(Chat(), ROWS, scorers=made_here, model="offline/calculator", name="here")
    assert main(["eval", "resume", "here"], environ={}, cwd=folder) == 1
    said = capsys.readouterr().err
    assert "exist only there: Chat, made_here" in said
    assert "evaluate(..., name='here')" in said


def test_a_workflow_brings_its_grader(folder: Path) -> None:
    (folder / "api_project_flow.py").write_text(ROLLOUT)
    write_rows(folder / "rows.jsonl", 3)
    run = evaluate("api_project_flow:Work", "rows.jsonl", model="offline/calculator")
    assert run.report.scores[0].name == "reward"
    assert run.report.completed == 3


def test_what_is_wrong_is_said_before_anything_is_asked(folder: Path) -> None:
    with ModelEndpoint() as endpoint:
        model = ModelSpec.parse("m", base_url=endpoint.url)
        with pytest.raises(UsageError, match="no score function or grader"):
            evaluate(Chat(), ROWS, model=model)
        with pytest.raises(ValidationError, match=r"attempts: .*greater than or equal to 1"):
            evaluate(Chat(), ROWS, scorers=exact, model=model, attempts=0)
        with pytest.raises(ValidationError, match="is not a valid run name"):
            evaluate(Chat(), ROWS, scorers=exact, model=model, name="a/b")
        with pytest.raises(DatasetError, match="row 1 cannot be written as JSON"):
            evaluate(Chat(), [ROWS[0], {"user_prompt": object()}], scorers=exact, model=model)
        with pytest.raises(DatasetError, match="invalid rows"):
            evaluate(Chat(), [{"question": "?"}], scorers=exact, model=model)
        with pytest.raises(UsageError, match="a pilot run needs"):
            evaluate(Chat(), ROWS, scorers=exact, model=model, pilot=2)
        with pytest.raises(UsageError, match="names its own endpoint"):
            evaluate(Chat(), ROWS, scorers=exact, model=model, base_url=endpoint.url)
        assert endpoint.requests == []
    with pytest.raises(NotFound, match="there is no run 'none'"):
        Run.open("none")


def test_a_pilot_asks_and_may_be_the_end(folder: Path) -> None:
    said: list[str] = []
    reports: list[Report] = []

    class Heard(Watcher):
        def say(self, text: str, *, keep: bool = False) -> None:
            said.append(text)

        def finished(self, report: Report) -> None:
            reports.append(report)

    run = evaluate(
        Chat(), ROWS, scorers=exact, model="offline/calculator", pilot=2, confirm=lambda _: False, watcher=Heard()
    )
    assert run.report.completed == 2
    assert run.report.stopped == "stopped on request"
    assert said[0].startswith("pilot: ")
    assert len(reports) == 1


def test_a_run_shows_itself(folder: Path) -> None:
    def score_with_a_markup_name(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        return 1.0

    score_with_a_markup_name.__qualname__ = score_with_a_markup_name.__name__ = "<b>[red]"
    run = evaluate(Chat(), ROWS, scorers=score_with_a_markup_name, model="offline/calculator", name="shown")
    assert repr(run).startswith("<Run shown: 5 of 5 rollouts, <b>[red] 1.000")
    page = run._repr_html_()
    assert "&lt;b&gt;[red]" in page
    assert "<b>" not in page
    from rich.console import Console

    console = Console(record=True, width=120)
    console.print(run)
    assert "<b>[red]" in console.export_text()


def test_rollouts_as_a_table(folder: Path) -> None:
    pytest.importorskip("pandas")

    def here(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        return 1.0

    table = evaluate(Chat(), ROWS, scorers=here, model="offline/calculator", name="table").to_pandas()
    assert len(table) == 5
    assert set(table.columns) >= {"row_index", "attempt", "status", "here", "failure", "duration_ms"}
    assert table.sort_values("row_index")["row_index"].tolist() == [0, 1, 2, 3, 4]


def test_keys_stay_out_of_what_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "a-token-to-hide")

    def leaks(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        raise RuntimeError("with a-token-to-hide")

    run = evaluate(Chat(), ROWS, scorers=leaks, model="offline/calculator", secrets=["MY_TOKEN"])
    assert run.report.failed == 0
    assert run.report.scores[0].failed == 5
    assert "a-token-to-hide" not in str(run.report.to_dict())
    assert all("a-token-to-hide" not in path.read_text() for path in run.folder.glob("*.json*"))


def test_an_interrupt_cuts_off_a_run_inside_a_running_loop(folder: Path) -> None:
    seen = []

    async def interrupts(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        seen.append(solution_str)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        return 1.0

    async def in_a_loop() -> Run:
        return evaluate(Chat(), ROWS, scorers=interrupts, model="offline/calculator", name="cut")

    loop = asyncio.new_event_loop()  # as a notebook's: a runner of asyncio's would handle the signal itself
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(in_a_loop())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()
    assert (json.loads((folder / ".osmosis/runs/cut/run.json").read_text())["sessions"][-1]["stopped"]) == "cut off"
    assert Run.open("cut").report.completed < 5
    assert evaluate(Chat(), ROWS, scorers=interrupts, model="offline/calculator", name="cut").report.completed == 5


def test_a_key_that_is_missing_is_named_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValidationError, match="GEMINI_API_KEY is not set, and model gemini/x needs it"):
        evaluate(Chat(), ROWS, scorers=exact, model="gemini/x")
    assert key_for(ModelSpec.parse("gemini/x"), {"GOOGLE_API_KEY": "k"}, None) is None
    assert key_for(ModelSpec.parse("gpt-5-mini"), {"OPENAI_API_KEY": "k"}, None) == "k"
    assert key_for(ModelSpec.parse("bedrock/x"), {}, None) is None
