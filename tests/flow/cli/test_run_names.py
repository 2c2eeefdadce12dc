"""A run is meant by its name, by the beginning of it, or as `latest`, by every command that takes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from osmosis.cli.completion import named_by
from osmosis.cli.main import ROOT
from osmosis.cli.resolve import Command, Group, load
from osmosis.engine.journal import Journal
from osmosis.records.plan import EvalPlan, ModelSpec
from osmosis.records.rollout import Rollout
from osmosis.testing.command_line import CommandRun, run_command
from osmosis.testing.eval_project import ROLLOUT, write_rows
from osmosis.testing.platform_app import RunningPlatform, running_platform
from osmosis.testing.platform_data import add_rollouts, add_run, rollout

pytestmark = pytest.mark.flow
Run = Callable[..., CommandRun]

RUNS = {"local-runs": "nightly", "eval-runs": "sums-1", "training-runs": "train-me-1", "runs": "nightly"}
"""What completes an argument that names a run, and a run that it can mean."""
REST = {"view": ("--export", "pages"), "eval tag": ("--remove", "no-such-tag")}
"""What else a command needs in order to end, or to say something."""
VALUES = {"new": "nightly"}
"""Of further arguments; rows are counted from 0."""
FAILS = ROLLOUT.replace("        return messages", '        raise LookupError("no idea")')


def commands(group: Group, path: Sequence[str] = ()) -> Iterator[tuple[list[str], Any]]:
    """Every command of the table, with its path."""
    for name, entry in group.commands.items():
        if isinstance(entry, Group):
            yield from commands(entry, [*path, name])
        elif not entry.hidden:
            yield from inside(load(entry, name), [*path, name])
    if isinstance(group.fallback, Command):
        yield from inside(load(group.fallback, path[-1]), [*path, ""])


def inside(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from inside(child, [*path, name])


def arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def test_every_argument_that_speaks_of_a_run_is_completed_as_one() -> None:
    for path, command in commands(ROOT):
        for one in arguments(command):
            words = (one.help or "").lower().replace("'", " ").split()
            if "run" in words or "runs" in words:
                assert named_by(path, one.name) in {*RUNS, "models", "nothing", "quarantined"}, (path, one.name)


def keep_local(folder: Path) -> None:
    plan = EvalPlan(name="nightly", agent="agent:run", dataset="d.jsonl", model=ModelSpec.parse("offline/x"))
    journal = Journal(folder / ".osmosis" / "runs" / "nightly")
    journal.open(plan)
    journal.append(rollout(0, 0, 1.0))
    journal.close()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path / "data") as running:
        yield running


@pytest.fixture
def run(tmp_path: Path, platform: RunningPlatform) -> Run:
    """The command line in a workspace whose config, run as `sums-1`, answered `What is 1 * 7?` with 8."""
    home = tmp_path / "ws"
    (home / "rollouts" / "chat").mkdir(parents=True)
    (home / "configs").mkdir()
    (home / "data").mkdir()
    (home / "rollouts" / "chat" / "main.py").write_text(ROLLOUT)
    write_rows(home / "data" / "sums.jsonl", 3)
    keep_local(home)
    config = {
        "experiment": {"rollout": "chat", "entrypoint": "main.py", "model_path": "openai/x", "dataset": "sums"},
        "evaluation": {"n": 1, "limit": 3},
        "secrets": {"required": []},
    }
    parts, workspace = platform.parts, platform.workspace_id
    for name, kind in (("older-1", "eval"), ("sums-1", "eval"), ("train-me-1", "training")):
        add_rollouts(parts, add_run(parts, workspace, name, kind=kind, config=config), answered())
    environ = {"OSMOSIS_PLATFORM_URL": platform.url, "OSMOSIS_TOKEN": platform.token, "PYTHONPATH": ""}
    environ["OSMOSIS_TOKEN_PLATFORM_URL"] = platform.url
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
    for path, command in commands(ROOT):
        kinds = [(one, RUNS.get(named_by(path, one.name) or "")) for one in arguments(command)]
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
    assert tried >= 25


def test_without_a_question_only_a_full_name_deletes(run: Run) -> None:
    for word in ("sums", "latest"):
        refused = run("eval", "delete", word, "--yes", "--json")
        assert (refused.code, refused.error["message"].split(",")[0]) == (2, f"'{word}' stands for sums-1")
    assert run("eval", "info", "sums-1", "--json").code == 0
    assert run("eval", "delete", "sums-1", "--yes", "--json").code == 0


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
