"""The pytest plugin, as a project uses it: pytest in a process of its own, over a small project."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from osmosis.pytest import Bars
from osmosis.records.run.report import Interval, Report, ScoreReport
from support.eval_project import AGENT, SCORE, write_rows

TESTS = """
import pytest

WHAT = dict(agent="plug_agent:agent", dataset="rows.jsonl", scorers=["plug_score:exact"], concurrency=8)

@pytest.mark.osmosis(**WHAT, model="offline/calculator", pass_rate=0.9)
def test_reached(osmosis_run):
    assert osmosis_run.report.completed == 10

@pytest.mark.osmosis(**WHAT, model="offline/echo", pass_rate=0.9)
def test_shown_to_be_below():
    pass

@pytest.mark.osmosis(**WHAT, model="offline/calculator", pass_rate=0.9)
def test_its_own_assertion(osmosis_run):
    assert osmosis_run.report.completed == 11

@pytest.mark.osmosis(**{**WHAT, "dataset": "gone.jsonl"}, model="offline/calculator")
def test_what_cannot_run():
    pass

@pytest.mark.osmosis(**WHAT, model="offline/calculator", pass_rat=0.9)
def test_misspelt():
    pass

def test_without_a_marker(osmosis_run):
    pass

def test_that_has_nothing_to_do_with_it():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "plug_agent.py").write_text(AGENT)
    (tmp_path / "plug_score.py").write_text(SCORE)
    (tmp_path / "test_agent.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    write_rows(tmp_path / "rows.jsonl", 10)
    return tmp_path


def run(folder: Path, *words: str) -> tuple[str, dict[str, ET.Element]]:
    """What it printed, and the cases of its JUnit report by name."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=out.xml", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout, {case.get("name", ""): case for case in ET.parse(folder / "out.xml").iter("testcase")}


def properties(case: ET.Element) -> dict[str, str]:
    return {one.get("name", ""): one.get("value", "") for one in case.iter("property")}


def failed(case: ET.Element) -> str:
    return "".join(one.get("message", "") for kind in ("failure", "error") for one in case.iter(kind))


def test_bars_figures_journals_and_errors(project: Path) -> None:
    said, cases = run(project)

    assert failed(cases["test_reached"]) == ""
    found = properties(cases["test_reached"])
    assert found["osmosis.pass_rate"] == "0.8 (0.444 to 0.975)"
    assert found["osmosis.rollouts"] == "10"
    assert (Path(found["osmosis.journal"]) / "rollouts.jsonl").is_file()

    assert "pass rate 0 (0 to 0.3" in failed(cases["test_shown_to_be_below"])
    assert "is below 0.9" in failed(cases["test_shown_to_be_below"])
    assert "assert 10 == 11" in failed(cases["test_its_own_assertion"])
    assert "no such dataset file" in failed(cases["test_what_cannot_run"])
    assert "During handling" not in failed(cases["test_what_cannot_run"])
    assert "no keyword pass_rat; did you mean pass_rate?" in failed(cases["test_misspelt"])
    assert "@pytest.mark.osmosis(agent=..." in failed(cases["test_without_a_marker"])
    assert failed(cases["test_that_has_nothing_to_do_with_it"]) == ""

    table = said[said.index("osmosis evaluations") :]
    assert "test_agent.py::test_reached: pass rate 0.8 (" in table


def test_options_of_the_session_and_other_processes(project: Path) -> None:
    words = (
        "-n",
        "2",
        "-k",
        "below",
        "--osmosis-model",
        "offline/calculator",
        "--osmosis-limit",
        "4",
        "--osmosis-resume",
    )
    said, cases = run(project, *words)
    found = properties(cases["test_shown_to_be_below"])
    assert failed(cases["test_shown_to_be_below"]) == ""
    assert found["osmosis.rollouts"] == "4"
    assert "osmosis evaluations" in said

    before = (Path(found["osmosis.journal"]) / "rollouts.jsonl").read_bytes()
    _, again = run(project, *words)
    assert properties(again["test_shown_to_be_below"])["osmosis.journal"] == found["osmosis.journal"]
    assert (Path(found["osmosis.journal"]) / "rollouts.jsonl").read_bytes() == before


def report(rate: float, low: float, high: float, failed: int = 0) -> Report:
    between = Interval(low=low, high=high, level=0.95)
    figures = {"mean": rate, "mean_interval": between, "pass_rate": rate, "pass_rate_interval": between}
    score = ScoreReport(name="f", passed=0, scored=10, failed=failed, **figures)
    counts = {"rows": 10, "attempts": 1, "pass_threshold": 1.0, "total": 10, "completed": 10}
    return Report(**counts, succeeded=10 - failed, failed=failed, skipped=0, coverage=1.0, scores=[score])


@pytest.mark.parametrize(
    ("bars", "said"),
    [
        (Bars(pass_rate=0.8), None),
        (Bars(pass_rate=0.9), None),
        (Bars(pass_rate=0.96), "is below 0.96"),
        (Bars(pass_rate=0.8, strict=True), "is not shown to reach 0.8"),
        (Bars(pass_rate=0.6, strict=True), None),
        (Bars(mean=0.99), "mean 0.8"),
        (Bars(score="g"), "there is no score g: f"),
        (Bars(max_failed=0.1), "2 of 10 rollouts failed (20%)"),
        (Bars(max_failed=0.2), None),
    ],
)
def test_a_bar_respects_the_interval(bars: Bars, said: str | None) -> None:
    missed = bars.missed(report(0.8, 0.7, 0.95, failed=2))
    assert (missed == []) if said is None else (said in missed[0])
