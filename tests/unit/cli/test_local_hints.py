"""What a local run's failures lead to: the command that shows one, and no login where nothing is on a platform."""

from __future__ import annotations

from pathlib import Path

from osmosis.cli.eval.report import next_steps
from osmosis.cli.eval.show import facts
from osmosis.local.run import stored_report
from osmosis.workspace.preflight import list_some
from support.command_line import run_command
from support.platform_data import rollout, timeout
from support.stored_run import stored_run


def test_a_run_with_failures_names_the_command_that_shows_one(tmp_path: Path) -> None:
    runs = tmp_path / ".osmosis" / "runs"
    journal = stored_run(runs / "night", [rollout(0, 0), rollout(4, 0, failure=timeout())])
    report = stored_report(journal)
    assert report is not None
    commands = [step.command for step in next_steps(journal.plan(), report)]
    assert "osmosis eval show night 4" in commands
    well = stored_run(runs / "well", [rollout(0, 0)], rows=1, attempts=1)
    report = stored_report(well)
    assert report is not None
    commands = [str(step.command) for step in next_steps(well.plan(), report)]
    assert commands[-1] == "osmosis view well"
    assert not any(command.startswith("osmosis eval show well 0") for command in commands)


def test_the_log_of_a_local_run_is_not_asked_of_a_platform(tmp_path: Path) -> None:
    stored_run(tmp_path / ".osmosis" / "runs" / "night", [rollout(0, 0)])
    refused = run_command("eval", "logs", "night", "--json", cwd=tmp_path)
    assert (refused.code, refused.error["message"]) == (1, "night is a local run, which has no log")
    assert "night" not in run_command("eval", "logs", "gone", "--json", cwd=tmp_path).error["message"]


def test_a_command_of_this_machine_says_how_a_run_is_made_here(tmp_path: Path) -> None:
    refused = run_command("rollout", "branch", "platform-run", "3", "--json", cwd=tmp_path)
    assert "osmosis eval run CONFIG" in refused.error["details"]["hint"]


def test_one_of_a_thing_is_one() -> None:
    said = " · ".join(facts(rollout(0, 0)))
    assert "1 model call · 1 tool call ·" in said


def test_files_of_one_name_are_told_apart() -> None:
    assert list_some(["a/x.toml", "b/x.toml"]) == "a/x.toml, b/x.toml are"
    assert list_some(["a/x.toml", "b/y.toml"]) == "x.toml, y.toml are"
