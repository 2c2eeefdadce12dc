"""What commands decide by themselves: the quickstart's model, the exit code of a finished run, where files go."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from osmosis.cli.core.context import AppContext, GlobalOptions, read_secrets_file
from osmosis.cli.core.output import Mode, Output
from osmosis.cli.core.prompts import ask, choose, confirm, hidden
from osmosis.cli.eval.follow import _without_debug, finished_result
from osmosis.cli.eval.progress import time_left
from osmosis.cli.eval.report import exit_code as local_exit_code
from osmosis.cli.eval.transfer import download_dir
from osmosis.cli.quickstart import STAND_IN, ModelChoice, choose_model
from osmosis.errors import InteractiveRequired, PlatformError, ValidationError
from osmosis.records.api.body import LogEntry, LogPage
from osmosis.records.api.runs import EvalRunDetail


def context(cwd: Path, stdin: str = "", **environ: str) -> AppContext:
    output = Output(Mode.RICH, environ=environ, stdout=io.StringIO(), stderr=io.StringIO())
    return AppContext(environ, cwd, GlobalOptions(), output, stdin=io.StringIO(stdin))


@pytest.mark.parametrize(
    ("environ", "flags", "expected"),
    [
        ({}, {}, ModelChoice(STAND_IN)),
        ({"OPENAI_API_KEY": "k"}, {}, ModelChoice("openai/gpt-5-mini", None, "OPENAI_API_KEY")),
        ({"ANTHROPIC_API_KEY": "k"}, {"model": STAND_IN}, ModelChoice(STAND_IN)),
        ({"OPENAI_API_KEY": "k"}, {"model": "m", "base_url": "http://h/v1"}, ModelChoice("m", "http://h/v1", None)),
        (
            {"K": "k"},
            {"model": "m", "base_url": "http://h/v1", "api_key_env": "K"},
            ModelChoice("m", "http://h/v1", "K"),
        ),
        ({"XAI_API_KEY": "k"}, {"model": "xai/grok-4"}, ModelChoice("xai/grok-4", None, "XAI_API_KEY")),
    ],
)
def test_the_model_is_the_one_named_else_one_with_a_key_else_the_stand_in(
    tmp_path: Path, environ: dict[str, str], flags: dict[str, str], expected: ModelChoice
) -> None:
    given: dict[str, Any] = {"model": None, "base_url": None, "api_key_env": None, **flags}
    assert choose_model(context(tmp_path, **environ), **given) == expected


def test_the_stand_in_is_called_one() -> None:
    assert "stand-in" in ModelChoice(STAND_IN).note
    assert ModelChoice(STAND_IN).flags() == []
    assert ModelChoice("m", "http://h/v1", "K").flags() == [
        "--model",
        "m",
        "--base-url",
        "http://h/v1",
        "--api-key-env",
        "K",
    ]


def test_nobody_is_asked_where_nobody_can_answer(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    for question in (
        lambda: confirm(ctx, "q"),
        lambda: ask(ctx, "q", flag="--yes"),
        lambda: choose(ctx, "q", [("a", "A")], flag="--yes"),
        lambda: hidden(ctx, "q", flags=["--yes"]),
    ):
        with pytest.raises(InteractiveRequired) as refused:
            question()
        assert refused.value.details["flags"] == ["--yes"]
    ctx.options = GlobalOptions(yes=True)
    assert confirm(ctx, "sure?") is True


def view(
    status: str, *, succeeded: int = 3, skipped: int = 0, scored: int | None = None, rate: float | None = 0.5
) -> EvalRunDetail:
    """Three rollouts; as many scored as succeeded unless said, under two scores of which the second always works."""
    scored = succeeded if scored is None else scored
    wanted = 3 - skipped
    report = {
        "rows": 3, "attempts": 1, "pass_threshold": 1.0, "total": 3, "completed": 3, "succeeded": succeeded,
        "failed": wanted - succeeded, "skipped": skipped, "coverage": 1.0,
        "scores": [
            {"name": "reward", "passed": 0, "scored": scored, "failed": wanted - scored},
            {"name": "length", "passed": 0, "scored": succeeded, "failed": wanted - succeeded},
        ],
    }  # fmt: skip
    run = {"id": "1", "name": "r-1", "status": status, "platform_url": "http://p/runs/1"}
    results = {"pass_rate": rate, "score": rate}
    return EvalRunDetail.model_validate({"eval_run": run, "report": report, "results": results})


@pytest.mark.parametrize(
    ("seen", "bar", "code"),
    [
        (view("finished"), None, 0),
        (view("finished"), 0.5, 0),
        (view("finished"), 0.6, 1),
        (view("finished", rate=None), 0.0, 1),
        (view("finished", succeeded=0), None, 1),
        (view("finished", scored=0), None, 1),
        (view("finished", scored=1), None, 0),
        (view("finished", succeeded=0, skipped=3), None, 0),
        (view("finished", succeeded=0, skipped=2), None, 1),
        (view("failed"), None, 1),
        (view("stopped"), None, 1),
    ],
)
def test_a_finished_run_decides_the_exit_code(seen: EvalRunDetail, bar: float | None, code: int) -> None:
    result = finished_result("eval.wait", seen, fail_under=bar)
    assert (result.exit_code, result.status) == (code, "failed" if code else "success")
    assert result.resource["url"] == "http://p/runs/1"


def test_a_report_from_another_server_is_not_needed() -> None:
    run = {"id": "1", "name": "x", "status": "finished"}
    seen = EvalRunDetail.model_validate({"eval_run": run, "report": {"surprise": 1}})
    assert seen.report is None
    assert finished_result("eval.wait", seen).exit_code == 0


@pytest.mark.parametrize(("graded", "failed", "code"), [(0, 3, 1), (1, 2, 0), (0, 0, 0), (None, None, 0)])
def test_without_a_report_the_results_decide(graded: int | None, failed: int | None, code: int) -> None:
    results = {"graded": graded, "failed": failed}
    run = {"id": "1", "name": "x", "status": "finished"}
    seen = EvalRunDetail.model_validate({"eval_run": run, "results": results})
    assert finished_result("eval.wait", seen).exit_code == code


def test_a_run_without_a_single_score_says_so() -> None:
    seen = view("finished", scored=0)
    assert "no rollout has a score" in finished_result("eval.submit", seen).message
    assert seen.report is not None
    assert local_exit_code(seen.report) == 1


def test_downloads_go_into_the_workspace(tmp_path: Path) -> None:
    for folder in ("rollouts", "configs/eval", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
    assert download_dir(context(tmp_path / "deep/er"), "r-1", None) == tmp_path / ".osmosis/evals/r-1"
    assert download_dir(context(tmp_path), "r-1", "here") == tmp_path / "here"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a\\x", ""])
def test_a_manifest_cannot_leave_its_folder(tmp_path: Path, path: str) -> None:
    from osmosis.cli.eval.transfer import _target

    with pytest.raises(PlatformError, match="outside the folder"):
        _target(tmp_path, path)


def test_a_secrets_file_is_read_as_people_write_it(tmp_path: Path) -> None:
    text = "# note\n\nA=1\nexport B = 'two words'\nC=\"x=y\"\nD=\n"
    assert read_secrets_file(context(tmp_path, stdin=text), "-") == {"A": "1", "B": "two words", "C": "x=y", "D": ""}
    with pytest.raises(ValidationError, match="line 2") as refused:
        read_secrets_file(context(tmp_path, stdin="A=1\nsecret value\n"), "-")
    assert "secret value" not in refused.value.message


@pytest.mark.parametrize(
    ("rollouts", "done", "seconds", "left"),
    [(20, 4, 20.0, "0:01:40 left"), (0, 4, 20.0, ""), (5, 0, 3.0, ""), (7200, 2, 2.0, "2:00:00 left")],
)
def test_the_time_left_counts_all_that_ended_in_this_session(
    rollouts: int, done: int, seconds: float, left: str
) -> None:
    assert time_left(rollouts, done, seconds) == left


class Pages:
    """A run's log in two pages, newest first, as the platform gives them."""

    def logs(self, name: str, *, limit: int = 200, cursor: str | None = None, newer: bool = False) -> LogPage:
        return LogPage(logs=[entry("older"), entry("noise", "debug"), entry("old")], next_cursor=None)


def entry(message: str, level: str = "info") -> LogEntry:
    return LogEntry(message=message, level=level)


def test_people_read_lines_above_debug_from_further_back_where_there_are_too_few() -> None:
    page = LogPage(logs=[entry("noise", "debug")] * 9 + [entry("new")], next_cursor="c")
    assert [line.message for line in _without_debug(Pages(), "r", page, 3)] == ["older", "old", "new"]
    assert [line.message for line in _without_debug(Pages(), "r", page, 1)] == ["new"]
