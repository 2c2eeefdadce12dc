"""A run is meant by its name, by the beginning of it, or as `latest`, by every command that takes one."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osmosis.cli.core import completion
from osmosis.records.run.rollout import Rollout
from support.command_line import CommandRun, run_command
from support.command_reference import commands
from support.eval_project import ROLLOUT, write_rows
from support.platform_app import RunningPlatform
from support.platform_data import add_rollouts, add_run, rollout
from support.stored_run import stored_run

Run = Callable[..., CommandRun]

RUNS = {
    completion.local_runs: "nightly",
    completion.eval_runs: "sums-1",
    completion.training_runs: "train-me-1",
    completion.runs: "nightly",
}
"""What completes an argument that names a run, and a run that it can mean."""
REST = {
    "eval export": ("--overwrite",),
    "judge compare": ("--rubric", "be kind", "--model", "offline/judge"),
    "judge check": ("--rubric", "rubrics.yaml#none"),
    "view": ("--export", "pages"),
    "eval edit": ("--remove-tag", "x"),
    "train edit": ("--remove-tag", "x"),
    "train compare": ("first-1",),
}
"""What else a command needs in order to end, or to say something."""
VALUES = {"new": "nightly"}
"""Of further arguments; rows are counted from 0."""
FAILS = ROLLOUT.replace("        return messages", '        raise LookupError("no idea")')


def arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def completer_of(command: Any, argument: Any) -> Any:
    annotation = inspect.signature(command.callback, eval_str=True).parameters[argument.name].annotation
    return annotation.__metadata__[0].autocompletion


def test_every_argument_that_speaks_of_a_run_is_completed_as_one() -> None:
    others = {completion.models, completion.nothing, completion.quarantined}
    texts = {"tags", "new", "text", "row", "place"}
    for path, command in commands():
        for argument in arguments(command):
            words = (argument.help or "").lower().replace("'", " ").split()
            if ("run" in words or "runs" in words) and argument.name not in texts:
                of_benchmarks = {completion.benchmark_runs, completion.benchmarks_and_runs}
                fitting = of_benchmarks if path[0] == "benchmark" else {*RUNS, *others}
                assert completer_of(command, argument) in fitting, (path, argument.name)


@pytest.fixture
def run(tmp_path: Path, platform: RunningPlatform) -> Run:
    """The command line in a workspace whose config, run as `sums-1`, answered `What is 1 * 7?` with 8."""
    home = tmp_path / "ws"
    (home / "rollouts" / "chat").mkdir(parents=True)
    (home / "configs").mkdir()
    (home / "data").mkdir()
    (home / "rollouts" / "chat" / "main.py").write_text(ROLLOUT)
    write_rows(home / "data" / "sums.jsonl", 3)
    stored_run(home / ".osmosis" / "runs" / "nightly", [rollout(0, 0, 1.0)], rows=1, attempts=1)
    config = {
        "experiment": {"rollout": "chat", "entrypoint": "main.py", "model_path": "openai/x", "dataset": "sums"},
        "evaluation": {"n": 1, "limit": 3},
        "secrets": {"required": []},
    }
    parts, workspace = platform.parts, platform.workspace_id
    for name, kind in (("first-1", "training"), ("older-1", "eval"), ("sums-1", "eval"), ("train-me-1", "training")):
        add_rollouts(parts, add_run(parts, workspace, name, kind=kind, config=config), answered())
    environ = {**platform.environ, "PYTHONPATH": ""}
    where = ("--workspace", platform.workspace)

    def go(*words: str) -> CommandRun:
        return run_command(*words, *where, cwd=home, environ=environ)

    return go


def answered() -> list[Rollout]:
    """One rollout with an answer, and one that ended before there was any."""
    said = [{"role": "user", "content": "What is 1 * 7?"}, {"role": "assistant", "content": "8\n#### 8"}]
    first = rollout(1, 0, 0.0, messages=said, row_key="one", calls=[], num_tool_calls=0)
    return [first, rollout(2, 0, 0.0, messages=said[:1], row_key="two", calls=[])]


def outcome(done: CommandRun) -> tuple[int, str]:
    """The exit code, and the code of the error."""
    lines = [line for line in done.err.splitlines() if line.startswith("{")]
    errors = [json.loads(line).get("error") for line in lines]
    return done.code, next((error["code"] for error in errors if error), "")


def test_every_command_takes_the_beginning_of_a_name_and_latest(run: Run) -> None:
    tried = 0
    for path, command in commands():
        kinds = [(one, RUNS.get(completer_of(command, one), "")) for one in arguments(command)]
        if not any(name for _, name in kinds):
            continue
        line = [word for word in path if word]
        found = []
        for meant in (lambda full: full, lambda full: full[:4], lambda _: "latest"):
            words = [meant(name) if name else VALUES.get(one.name, "0") for one, name in kinds if name or one.required]
            found.append(outcome(run(*line, *words, *REST.get(" ".join(line), ()), "--json")))
        assert found[0] == found[1] == found[2], (line, found)
        gone = ["no-such-run" if name else "0" for one, name in kinds if name or one.required]
        missing = run(*line, *gone, *REST.get(" ".join(line), ()), "--json")
        assert missing.code == 1, (line, missing)
        tried += 1
    assert tried >= 20


def test_without_a_question_only_a_full_name_deletes(run: Run) -> None:
    for word, name in (("sums", "sums-1"), ("platform:latest", "sums-1"), ("latest", "nightly"), ("night", "nightly")):
        refused = run("eval", "delete", word, "--yes", "--json")
        assert (refused.code, refused.error["message"].split(",")[0]) == (
            2,
            f"'{word.removeprefix('platform:')}' stands for {name}",
        )
    assert run("eval", "info", "sums-1", "--json").code == 0
    assert run("eval", "delete", "platform:sums-1", "--yes", "--json").code == 0
    assert run("eval", "delete", "nightly", "--yes", "--json").code == 0
    assert [row["name"] for row in run("eval", "list", "--local", "--json").json["items"]] == []
    assert [row["name"] for row in run("eval", "list", "--json").json["items"]] == ["older-1"]


def test_a_beginning_that_could_be_two_runs_is_asked_about(run: Run, platform: RunningPlatform) -> None:
    add_run(platform.parts, platform.workspace_id, "sums-2")
    refused = run("eval", "info", "sums")
    assert refused.code == 2
    assert "'sums' could be sums-1, sums-2" in refused.err


def test_a_rollout_of_the_platform_is_replayed_with_the_code_that_is_here(
    run: Run, platform: RunningPlatform, tmp_path: Path
) -> None:
    same = run("rollout", "replay", "sums-1", "1", "--json")
    assert same.code == 0, same.err
    assert (same.json["data"]["same"], same.json["data"]["run"]) == (True, "sums-1")
    assert same.json["data"]["rollout"]["messages"][-1]["content"] == "8\n#### 8"

    (tmp_path / "ws" / "rollouts" / "broken").mkdir()
    (tmp_path / "ws" / "rollouts" / "broken" / "main.py").write_text(FAILS)
    experiment = {"rollout": "broken", "entrypoint": "main.py", "model_path": "openai/x", "dataset": "sums"}
    config = {"experiment": experiment, "evaluation": {}, "secrets": {"required": []}}
    broken = add_run(platform.parts, platform.workspace_id, "broken-1", config=config)
    add_rollouts(platform.parts, broken, answered())
    failing = run("rollout", "replay", "platform:broken", "1", "--json")
    assert failing.code == 1
    assert "no idea" in failing.json["data"]["rollout"]["failure"]["message"]

    nothing = run("rollout", "replay", "sums-1", "2")
    assert nothing.code == 1
    assert "row 2 attempt 0 of sums-1 has no recorded answer of the model" in nothing.err


def test_why_says_what_a_run_of_the_platform_waits_for(run: Run, platform: RunningPlatform) -> None:
    over = run("eval", "why", "sums-1", "--json").json["data"]
    assert (over["state"], over["times"]["rollouts"]) == ("over", 2)
    add_run(platform.parts, platform.workspace_id, "queued-1", "pending")
    waiting = run("eval", "why", "platform:latest", "--json").json["data"]
    assert (waiting["name"], waiting["state"]) == ("queued-1", "pending")
    assert "waits for a worker" in waiting["reasons"][0]["what"]
    assert "waits for a worker" in run("eval", "why", "queued-1").out
