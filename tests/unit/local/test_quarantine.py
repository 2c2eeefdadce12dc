"""Rows in quarantine are shown and decide nothing, until their last day is over."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import date, timedelta
from pathlib import Path

import pytest

from osmosis.local.run import Run
from osmosis.local.viewing.library import LocalLibrary
from osmosis.pytest import Bars
from osmosis.records.base import utc_now
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import QuarantinedRow
from osmosis.viewer import routes
from osmosis.viewer.page import QueryParams
from support.command_line import CommandRun, run_command
from support.kept_run import html_of
from support.platform_data import rollout
from support.stored_run import stored_run

ROWS = 12
FLAKY = tuple(range(6))


def attempts(fails: tuple[int, ...]) -> list[Rollout]:
    return [
        rollout(row, attempt, 0.0 if row in fails else 1.0, row_key=f"q-{row}")
        for row in range(ROWS)
        for attempt in range(2)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`before`, where every row passes, and `after`, where the flaky ones fail."""
    for name, fails in (("before", ()), ("after", FLAKY)):
        stored_run(tmp_path / ".osmosis" / "runs" / name, attempts(fails), rows=ROWS)
    return tmp_path


def go(folder: Path, *words: str, code: int = 0) -> CommandRun:
    done = run_command(*words, "--json", cwd=folder)
    assert done.code == code, done.err
    return done


def put_all(folder: Path, rows: tuple[int, ...] = FLAKY) -> None:
    for row in rows:
        go(folder, "eval", "quarantine", "add", f"after:{row}", "--reason", "the judge wavers")


def test_a_regression_of_rows_in_quarantine_does_not_fail(folder: Path) -> None:
    compare = ("eval", "compare", "before", "after", "--fail-on-regression")
    assert go(folder, *compare, code=1).json["data"]["verdict"] == "worse"
    put_all(folder)
    data = go(folder, *compare).json["data"]
    assert (data["verdict"], data["rows"], data["lost"], data["mean_b"]) == ("no clear difference", 6, 0, 1.0)
    assert [(one["key"], one["mean_a"], one["mean_b"]) for one in data["quarantined"]] == [
        (f"q-{row}", 1.0, 0.0) for row in FLAKY
    ]
    assert "the judge wavers" in data["notes"][0]
    assert "the judge wavers" in run_command("eval", "compare", "before", "after", "--md", cwd=folder).out


def test_an_entry_that_is_over_counts_again_and_says_so(folder: Path) -> None:
    entries = "".join(f'[[row]]\nkey = "q-{row}"\nreason = "old"\nuntil = 2020-01-31\n' for row in FLAKY)
    (folder / "quarantine.toml").write_text(entries)
    data = go(folder, "eval", "compare", "before", "after", "--fail-on-regression", code=1).json["data"]
    assert (data["verdict"], data["quarantined"]) == ("worse", [])
    assert data["notes"][0] == "row q-0 was in quarantine until 2020-01-31, and counts again: old"


def test_an_entry_may_mean_one_dataset_alone(folder: Path) -> None:
    put_all(folder)
    path = folder / "quarantine.toml"
    assert 'dataset = "data"' in path.read_text(), "RUN:INDEX brings the dataset of its run"
    path.write_text(path.read_text().replace('dataset = "data"', 'dataset = "another"'))
    assert go(folder, "eval", "compare", "before", "after").json["data"]["verdict"] == "worse"


def test_the_last_day_is_inclusive() -> None:
    last = date(2026, 5, 1)
    entry = QuarantinedRow(key="q", reason="r", until=last)
    assert [entry.expired(last + timedelta(days=days)) for days in (-1, 0, 1)] == [False, False, True]


def test_the_file_is_changed_as_by_hand(folder: Path) -> None:
    path = folder / "quarantine.toml"
    path.write_text('# ours\n[[row]]\nkey = "q-9" # see issue 3\nreason = "r"\nuntil = 2999-01-01\n')
    go(folder, "eval", "quarantine", "add", "q-1", "--reason", "first")
    go(folder, "eval", "quarantine", "add", "q-1", "--reason", "second", "--until", "2999-12-31")
    assert path.read_text().startswith('# ours\n[[row]]\nkey = "q-9" # see issue 3\n')
    rows = go(folder, "eval", "quarantine", "list").json["items"]
    assert [(one["key"], one["reason"], one["until"]) for one in rows] == [
        ("q-9", "r", "2999-01-01"),
        ("q-1", "second", "2999-12-31"),
    ]
    assert run_command("__complete", "--", "eval", "quarantine", "remove", "q-1", cwd=folder).out == "q-1\n"
    go(folder, "eval", "quarantine", "remove", "q-1")
    go(folder, "eval", "quarantine", "remove", "q-1", code=1)
    assert [one["key"] for one in go(folder, "eval", "quarantine", "list").json["items"]] == ["q-9"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[row]\n", "quarantine.toml"),
        ('[[row]]\nkey = "a"\nreason = ""\nuntil = 2999-01-01\n', "row.0.reason"),
        ('[[row]]\nkey = "a"\nreason = "x"\nuntil = "soon"\n', "row.0.until"),
        ('[[rows]]\nkey = "a"\n', "rows"),
    ],
)
def test_a_file_that_cannot_be_read_stops_the_gate(folder: Path, text: str, words: str) -> None:
    (folder / "quarantine.toml").write_text(text)
    assert words in go(folder, "eval", "compare", "before", "after", code=1).error["message"]


def test_a_day_that_is_over_is_refused(folder: Path) -> None:
    refused = go(folder, "eval", "quarantine", "add", "q-2", "--reason", "r", "--until", "2020-01-01", code=2)
    assert "is over" in refused.error["message"]
    given = go(folder, "eval", "quarantine", "add", "q-2", "--reason", "r").json["resource"]
    assert date.fromisoformat(given["until"]) > utc_now().date()


def test_a_row_that_no_run_has_is_refused(folder: Path, tmp_path: Path) -> None:
    for words in (("4",), ("q-99",), ("q-1", "--dataset", "other.jsonl")):
        done = run_command("eval", "quarantine", "add", *words, "--reason", "r", "--json", cwd=folder)
        assert (done.code, "no row of" in done.err) == ((0, False) if "--dataset" in words else (1, True))
    entry = go(folder, "eval", "quarantine", "list").json["items"]
    assert [(one["key"], one["dataset"]) for one in entry] == [("q-1", "other")]  # no run of it yet to look at


def test_a_report_shows_every_row_and_what_decides(folder: Path) -> None:
    put_all(folder, (0, 1))
    data = go(folder, "eval", "report", "after").json["data"]
    assert data["quarantine"]["without"]["pass_rate"] == 0.6
    assert [one["key"] for one in data["quarantine"]["rows"]] == ["q-0", "q-1"]
    assert "without them: reward 0.600, pass rate 60.0 %" in run_command("eval", "report", "after", cwd=folder).out
    suite = ET.fromstring(run_command("eval", "report", "after", "--junit", "-o", "-", cwd=folder).out).find(
        "testsuite"
    )
    assert suite is not None
    assert (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("8", "4", "24")


def test_a_bar_of_a_test_is_held_against_the_other_rows(folder: Path) -> None:
    run = Run.open(folder / ".osmosis" / "runs" / "after")
    bars = Bars(pass_rate=0.95, strict=False)
    assert bars.missed(run.report, run.judged(folder).report)
    put_all(folder)
    judged = run.judged(folder)
    assert bars.missed(run.report, judged.report) == []
    assert len(judged.met.lines) == len(FLAKY)
    assert judged.report.total == 12


def test_pages_say_it_and_have_the_verdict_of_the_command(folder: Path, tmp_path: Path) -> None:
    put_all(folder)
    library = LocalLibrary([folder / ".osmosis" / "runs"], tmp_path / "cache")
    view = routes.build_page(library, "compare", QueryParams([("run", "before"), ("run", "after")]))
    assert view.values["other"].verdict == "no clear difference"
    shown = html_of(view)
    assert "the judge wavers" in shown
    assert shown.count("/history?row=q-") == len(FLAKY)
    for asked, count in (((), len(FLAKY)), ((("row", "q-1"),), 1), ((("row", "q-7"),), 0)):
        view = routes.build_page(library, "history", QueryParams(list(asked)))
        assert html_of(view).count("the judge wavers") == count
    found = go(folder, "eval", "history", "--here", "--row", "q-1").json
    assert [one["reason"] for one in found["quarantine"]] == ["the judge wavers"]
    assert json.loads(json.dumps(found["quarantine"]))[0]["expired"] is False
