"""What a local run's failures lead to: the command that shows one, and no login where nothing is on a platform."""

from __future__ import annotations

from pathlib import Path

from osmosis.cli.draw_rollout import facts
from osmosis.cli.local_eval.show import next_steps
from osmosis.local.run import stored_report
from osmosis.testing.command_line import run_command
from osmosis.testing.platform_data import rollout, timeout
from osmosis.testing.stored_run import stored_run
from osmosis.workspace.findings import some


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
    assert not any("eval show" in str(step.command) for step in next_steps(well.plan(), report))


def test_the_log_of_a_local_run_is_not_asked_of_a_platform(tmp_path: Path) -> None:
    stored_run(tmp_path / ".osmosis" / "runs" / "night", [rollout(0, 0)])
    refused = run_command("eval", "logs", "night", "--json", cwd=tmp_path)
    assert (refused.code, refused.error["message"]) == (1, "night is a local run, which has no log")
    assert "night" not in run_command("eval", "logs", "gone", "--json", cwd=tmp_path).error["message"]


def test_one_of_a_thing_is_one() -> None:
    said = " · ".join(facts(rollout(0, 0)))
    assert "1 model call · 1 tool call ·" in said


def test_files_of_one_name_are_told_apart() -> None:
    assert some(["a/x.toml", "b/x.toml"]) == "a/x.toml, b/x.toml are"
    assert some(["a/x.toml", "b/y.toml"]) == "x.toml, y.toml are"
