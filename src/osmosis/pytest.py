"""An evaluation as a test: the pytest plugin that comes with osmosis.

    @pytest.mark.osmosis(agent="server:agent_loop", dataset="data.jsonl", scorers=["rewards:exact"],
                         model="openai/gpt-5-mini", pass_rate=0.8)
    def test_multiplication(osmosis_run):
        assert osmosis_run.report.failed == 0

The marker takes what `osmosis.evaluate` takes, and the bars: `pass_rate`, `mean`, `max_failed`. A bar respects the
interval: the test fails when the figure is shown to be below it (the interval's upper end is), and with `strict=True`
unless it is shown to be above; rows in the project's `quarantine.toml` do not count for it. The run's journal is kept,
figures go into JUnit XML as properties, and a table of the runs ends the session. Evaluates nothing by itself, and
refuses bars it does not know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pytest

import osmosis
from osmosis.metrics.intervals import missed_bar

if TYPE_CHECKING:
    from osmosis.local.run import Run
    from osmosis.records.run.report import Interval, Report

_MARK = "osmosis"
_PROPERTY = "osmosis."
_RUN = pytest.StashKey["Run"]()


@dataclass(frozen=True)
class Bars:
    """The figures that a run has to reach; None asks for nothing."""

    pass_rate: float | None = None
    """Share of the rollouts whose score is at least the pass threshold; failures do not pass."""
    mean: float | None = None  # Mean score; failures count as 0
    max_failed: float | None = None  # Share of rollouts that may fail: a failure of the infrastructure is no bad answer
    score: str | None = None  # Name of the score; default: the first
    strict: bool = False  # Ask for the lower end of the interval, not the upper one, to reach the bar

    def missed(self, report: Report, deciding: Report | None = None) -> list[str]:
        """Return each missed bar as a sentence. `deciding`: the figures without rows in quarantine."""
        if report.stopped:
            return [f"the run stopped: {report.stopped}"]
        report = deciding or report
        score = next((score_report for score_report in report.scores if self.score in (None, score_report.name)), None)
        if score is None:
            names = ", ".join(score_report.name for score_report in report.scores) or "none"
            return [f"there is no score {self.score or ''}: {names}".replace("  ", " ")]
        sentences = [
            missed_bar(name, bar, value, interval, strict=self.strict)
            for name, bar, value, interval in (
                ("pass rate", self.pass_rate, score.pass_rate, score.pass_rate_interval),
                ("mean", self.mean, score.mean, score.mean_interval),
            )
            if bar is not None
        ]
        failed = report.failed / report.total if report.total else 0.0
        if self.max_failed is not None and failed > self.max_failed:
            worst = report.failures[0].example if report.failures else ""
            sentences.append(f"{report.failed} of {report.total} rollouts failed ({failed:.0%}): {worst}")
        return [line for line in sentences if line]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("osmosis", "evaluations of agents")
    group.addoption("--osmosis-model", metavar="NAME", help="Model of all evaluations, instead of each marker's.")
    group.addoption("--osmosis-base-url", metavar="URL", help="OpenAI-compatible endpoint of that model, up to /v1.")
    group.addoption("--osmosis-limit", type=int, metavar="N", help="Only the first N rows of each dataset.")
    group.addoption("--osmosis-resume", action="store_true", help="Reuse what the last session stored and still fits.")


def pytest_configure(config: pytest.Config) -> None:
    names = ", ".join(field.name for field in fields(Bars))
    config.addinivalue_line(
        "markers",
        f"{_MARK}(agent, dataset, scorers, model, ...): evaluate an agent; osmosis.evaluate's keywords, {names}",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker(_MARK) is not None:
        names = item.fixturenames  # type: ignore[attr-defined]  # of Functions alone
        if "osmosis_run" not in names:
            names.append("osmosis_run")


@pytest.fixture
def osmosis_run(request: pytest.FixtureRequest) -> Run:
    """Return the finished `Run` of the test's `osmosis` marker."""
    mark = request.node.get_closest_marker(_MARK)
    if mark is None or mark.args:
        pytest.fail("osmosis_run needs @pytest.mark.osmosis(agent=..., dataset=..., model=...)", pytrace=False)
    for name in mark.kwargs.keys() - _bar_names():
        if near := get_close_matches(name, _bar_names(), 1, 0.9):
            pytest.fail(f"the marker osmosis has no keyword {name}; did you mean {near[0]}?", pytrace=False)
    options = {key: value for key, value in mark.kwargs.items() if key not in _bar_names()}
    config = request.config
    options.setdefault("base_dir", config.rootpath)
    options |= _overrides(config, options)
    if config.getoption("--osmosis-resume"):
        options.setdefault("name", _name_of(request.node.nodeid))
        options.setdefault("accept_changes", True)
    try:
        run: Run = osmosis.evaluate(**options)
    except osmosis.OsmosisError as error:
        hint = f"\n  try: {error.hint}" if error.hint else ""
        raise pytest.fail.Exception(f"osmosis: {error.message}{hint}", pytrace=False) from None
    request.node.stash[_RUN] = run
    request.node.user_properties += _figures(run)
    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    result = yield
    run = item.stash.get(_RUN, None)
    if run is not None:
        mark = item.get_closest_marker(_MARK)
        assert mark is not None
        bars = Bars(**{key: value for key, value in mark.kwargs.items() if key in _bar_names()})
        judged = run.judged(item.config.rootpath)
        if judged.met.lines:
            item.user_properties.append((f"{_PROPERTY}quarantine", "; ".join(judged.met.lines)))
        missed = bars.missed(run.report, judged.report)
        if missed:
            lines = [*missed, *judged.met.lines, f"osmosis eval show {run.folder}", f"osmosis view {run.folder}"]
            pytest.fail("\n".join(lines), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])]
    tests = [(report.nodeid, values) for report in reports if report.when == "call" and (values := _of_report(report))]
    if not tests:
        return
    terminalreporter.section("osmosis evaluations")
    for nodeid, values in tests:
        rate = values.get("pass_rate", "")
        figures = f"pass rate {rate}" if rate else f"mean {values.get('mean', '-')}"
        terminalreporter.write_line(f"{nodeid}: {figures}, {values.get('rollouts')} rollouts, {values.get('journal')}")
        if values.get("quarantine"):
            terminalreporter.write_line(f"  {values['quarantine']}")


def _of_report(report: pytest.TestReport) -> dict[str, str]:
    pairs = [(name, str(value)) for name, value in report.user_properties]
    return {name[len(_PROPERTY) :]: value for name, value in pairs if name.startswith(_PROPERTY)}


def _bar_names() -> set[str]:
    return {field.name for field in fields(Bars)}


def _overrides(config: pytest.Config, options: dict[str, object]) -> dict[str, object]:
    overrides: dict[str, object] = {}
    if config.getoption("--osmosis-model"):
        overrides["model"] = config.getoption("--osmosis-model")
        overrides["base_url"] = config.getoption("--osmosis-base-url")
    limit = config.getoption("--osmosis-limit")
    if limit is not None:
        selection = options.get("selection") or osmosis.Selection()
        assert isinstance(selection, osmosis.Selection)
        overrides["selection"] = selection.model_copy(update={"limit": limit})
    return overrides


def _name_of(nodeid: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", nodeid).strip("-")[-90:].lstrip("-._") or "test"


def _figures(run: Run) -> list[tuple[str, object]]:
    report, primary = run.report, run.report.primary
    pairs: list[tuple[str, object]] = [("rollouts", report.completed), ("failed", report.failed)]
    if primary is not None:
        pairs += [("score", primary.name), ("mean", _format_figure(primary.mean, primary.mean_interval))]
        pairs.append(("pass_rate", _format_figure(primary.pass_rate, primary.pass_rate_interval)))
    pairs += [("tokens", report.usage.total_tokens), ("cost_usd", report.usage.cost_usd), ("journal", str(run.folder))]
    return [(_PROPERTY + name, value) for name, value in pairs if value is not None]


def _format_figure(value: float | None, interval: Interval | None) -> str | None:
    if value is None:
        return None
    return f"{value:.4g}" + (f" ({interval.low:.3g} to {interval.high:.3g})" if interval is not None else "")
