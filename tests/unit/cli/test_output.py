"""Results in three forms: envelopes, plain lines and tables; text of people is text, never markup."""

from __future__ import annotations

import io
import json

import pytest

from osmosis.cli.core.output import Mode, Output
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult
from osmosis.errors import InternalError, UsageError, ValidationError

ROWS = [{"name": "[red]a[/red]", "n": {"deep": 1}, "bad": "x\x1b[31my\ty\nz"}, {"name": "b :smile:", "n": {}}]
COLUMNS = [Column("name", "Name"), Column("n.deep", "Deep", justify="right"), Column("bad", "Bad")]


def make(mode: Mode, **environ: str) -> Output:
    return Output(mode, environ=environ, stdout=io.StringIO(), stderr=io.StringIO())


def out(output: Output) -> str:
    assert isinstance(output.stdout, io.StringIO)
    return output.stdout.getvalue()


def err(output: Output) -> str:
    assert isinstance(output.stderr, io.StringIO)
    return output.stderr.getvalue()


def test_a_list_is_an_envelope_of_items() -> None:
    output = make(Mode.JSON)
    result = ListResult(ROWS, COLUMNS, total_count=7, has_more=True, next_offset=2, extra={"git": {"identity": "a/b"}})
    assert output.show(result) == 0
    body = json.loads(out(output))
    assert body["items"] == ROWS
    assert {k: body[k] for k in ("schema_version", "total_count", "has_more", "next_offset")} == {
        "schema_version": 1,
        "total_count": 7,
        "has_more": True,
        "next_offset": 2,
    }
    assert body["git"] == {"identity": "a/b"}
    assert out(output).count("\n") == 1


def test_plain_lines_have_one_tab_per_column_whatever_the_text() -> None:
    output = make(Mode.PLAIN)
    output.show(ListResult(ROWS, COLUMNS))
    lines = out(output).splitlines()
    assert [line.count("\t") for line in lines] == [2, 2]
    assert lines[0].split("\t")[2] == "x\\x1b[31my y z"


def test_people_see_markup_and_control_characters_as_text() -> None:
    output = make(Mode.RICH)
    output.show(ListResult(ROWS, COLUMNS, next_steps=[NextStep("open", url="http://x/[b]")]))
    shown = out(output)
    assert "[red]a[/red]" in shown
    assert ":smile:" in shown
    assert "http://x/[b]" in shown
    assert "\x1b" not in shown


def test_numbers_that_are_not_finite_become_null() -> None:
    output = make(Mode.JSON)
    output.show(DetailResult({"a": float("nan"), "b": [float("inf")], "c": 1.5}))
    assert json.loads(out(output))["data"] == {"a": None, "b": [None], "c": 1.5}


def test_an_operation_carries_its_next_steps() -> None:
    output = make(Mode.JSON)
    steps = [NextStep("follow", command="osmosis eval wait x"), NextStep("page", url="http://p")]
    output.show(OperationResult("eval.submit", "done", {"id": "1"}, next_steps=steps))
    body = json.loads(out(output))
    assert (body["status"], body["operation"], body["resource"]) == ("success", "eval.submit", {"id": "1"})
    assert body["next_steps_structured"] == [
        {"action": "follow", "command": "osmosis eval wait x"},
        {"action": "page", "label": "page", "url": "http://p"},
    ]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_result_decides_the_exit_code(mode: Mode) -> None:
    assert make(mode).show(OperationResult("x.y", "below the bar", exit_code=1)) == 1


def test_errors_go_to_stderr_with_their_issues() -> None:
    error = ValidationError(
        "two problems",
        hint="osmosis doctor",
        issues=[
            {"key": "a", "message": "wrong"},
            {"where": "f:3", "key": "b", "message": "odd", "key_correction": "c"},
        ],
    )
    human, data = make(Mode.RICH), make(Mode.JSON)
    assert human.error(error, "eval submit") == data.error(error, "eval submit") == 1
    assert err(human).splitlines() == [
        "Error: two problems",
        "  a: wrong",
        "  f:3: odd (did you mean c?)",
        "  try: osmosis doctor",
    ]
    body = json.loads(err(data))
    assert (body["command"], body["error"]["code"], body["cli_version"]) == ("eval submit", "VALIDATION", "1.0.0")
    assert body["error"]["details"]["issues"][1]["key_correction"] == "c"
    assert out(human) == out(data) == ""


def test_exit_codes_follow_the_class() -> None:
    assert make(Mode.PLAIN).error(UsageError("x")) == 2
    assert make(Mode.PLAIN).error(InternalError("x")) == 3


def test_a_warning_is_said_once_and_is_data_for_programs() -> None:
    output = make(Mode.JSON)
    output.warn("DEPRECATED", "old")
    output.warn("DEPRECATED", "old")
    assert json.loads(err(output)) == {
        "schema_version": 1,
        "cli_version": "1.0.0",
        "warning": {"code": "DEPRECATED", "message": "old"},
    }


def test_remarks_are_for_people_only() -> None:
    for mode, expected in ((Mode.RICH, "hello\n"), (Mode.PLAIN, ""), (Mode.JSON, "")):
        output = make(mode)
        output.say("hello")
        assert err(output) == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_only_on_a_terminal_that_wants_them(environ: dict[str, str], coloured: bool) -> None:
    output = Output(Mode.RICH, environ={"TERM": "xterm", **environ}, stdout=Terminal(), stderr=Terminal())
    output.show(ListResult([{"status": "failed"}], [Column("status", "Status")]))
    assert ("\x1b[31m" in out(output)) is coloured


def test_progress_is_drawn_on_a_terminal_outside_ci() -> None:
    def live(mode: Mode, **environ: str) -> bool:
        return Output(mode, environ=environ, stdout=Terminal(), stderr=Terminal()).live

    assert live(Mode.RICH)
    assert not live(Mode.RICH, CI="1")
    assert not live(Mode.JSON)
    assert not make(Mode.RICH).live


def test_an_encoding_that_cannot_say_it_does_not_break_the_result() -> None:
    raw = io.BytesIO()
    output = Output(Mode.PLAIN, environ={}, stdout=io.TextIOWrapper(raw, "ascii"), stderr=io.StringIO())
    output.show(OperationResult("x.y", "schön"))
    assert raw.getvalue() == b"sch\\xf6n\n"
