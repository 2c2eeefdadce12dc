"""An evaluation as a test: the pytest plugin that comes with osmosis.

    @pytest.mark.osmosis(agent="server:agent_loop", dataset="data.jsonl", scorers=["rewards:exact"],
                         model="openai/gpt-5-mini", pass_rate=0.8)
    def test_multiplication(osmosis_run):
        assert osmosis_run.report.failed == 0

The marker takes what `osmosis.evaluate` takes, and the bars: `pass_rate`, `mean`, `max_failed`. A bar respects the
interval: the test fails when the figure is shown to be below it (the interval's upper end is), and with `strict=True`
unless it is shown to be above; rows in the project's `quarantine.toml` do not count for it. The run's journal is kept,
figures go into JUnit XML as properties, and a table of the runs ends the session. Evaluates nothing by itself, and
refuses bars it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import pytest

import osmosis

if TYPE_CHECKING:
    from osmosis import Run
    from osmosis.records.report import Interval, Report

_MARK = "osmosis"
_PROPERTY = "osmosis."
_RUN = pytest.StashKey["Run"]()


@dataclass(frozen=True)
class Bars:
    """What a run has to reach; None asks for nothing."""

    pass_rate: float | None = None
    """Share of the rollouts whose score is at least the pass threshold; failures do not pass."""
    mean: float | None = None
    """Mean score; failures count as 0."""
    max_failed: float | None = None
    """Share of rollouts that may fail: a failure of the infrastructure is no bad answer."""
    score: str | None = None
    """Which score; default: the first."""
    strict: bool = False
    """Ask for the lower end of the interval, not the upper one, to reach the bar."""

    def missed(self, report: Report, deciding: Report | None = None) -> list[str]:
        """Each bar that was missed, as a sentence. `deciding`: the figures without rows in quarantine."""
        if report.stopped:
            return [f"the run stopped: {report.stopped}"]
        report = deciding or report
        found = next((one for one in report.scores if self.score in (None, one.name)), None)
        if found is None:
            names = ", ".join(one.name for one in report.scores) or "none"
            return [f"there is no score {self.score or ''}: {names}".replace("  ", " ")]
        said = [
            self._missed("pass rate", self.pass_rate, found.pass_rate, found.pass_rate_interval),
            self._missed("mean", self.mean, found.mean, found.mean_interval),
        ]
        failed = report.failed / report.total if report.total else 0.0
        if self.max_failed is not None and failed > self.max_failed:
            worst = report.failures[0].example if report.failures else ""
            said.append(f"{report.failed} of {report.total} rollouts failed ({failed:.0%}): {worst}")
        return [line for line in said if line]

    def _missed(self, name: str, bar: float | None, value: float | None, interval: Interval | None) -> str | None:
        if bar is None:
            return None
        if value is None:
            return f"{name}: nothing was scored"
        low, high = (interval.low, interval.high) if interval is not None else (value, value)
        reached = low if self.strict else high
        if reached >= bar:
            return None
        shown = f" ({low:.3g} to {high:.3g})" if interval is not None else ""
        how = "is not shown to reach" if self.strict and high >= bar else "is below"
        return f"{name} {value:.3g}{shown} {how} {bar:g}"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("osmosis", "evaluations of agents")
    group.addoption("--osmosis-model", metavar="NAME", help="Model of all evaluations, instead of each marker's.")
    group.addoption("--osmosis-base-url", metavar="URL", help="OpenAI-compatible endpoint of that model, up to /v1.")
    group.addoption("--osmosis-limit", type=int, metavar="N", help="Only the first N rows of each dataset.")
    group.addoption("--osmosis-resume", action="store_true", help="Reuse what the last session stored and still fits.")


def pytest_configure(config: pytest.Config) -> None:
    known = ", ".join(one.name for one in fields(Bars))
    config.addinivalue_line(
        "markers",
        f"{_MARK}(agent, dataset, scorers, model, ...): evaluate an agent; osmosis.evaluate's keywords, {known}",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker(_MARK) is not None:
        names = item.fixturenames  # type: ignore[attr-defined]  # of Functions alone
        if "osmosis_run" not in names:
            names.append("osmosis_run")


@pytest.fixture
def osmosis_run(request: pytest.FixtureRequest) -> Run:
    """The `Run` of the test's `osmosis` marker, over and on disk."""
    mark = request.node.get_closest_marker(_MARK)
    if mark is None or mark.args:
        pytest.fail("osmosis_run needs @pytest.mark.osmosis(agent=..., dataset=..., model=...)", pytrace=False)
    options = {key: value for key, value in mark.kwargs.items() if key not in _bar_names()}
    config = request.config
    options.setdefault("base_dir", config.rootpath)
    options |= _overrides(config, options)
    if config.getoption("--osmosis-resume"):
        options.setdefault("name", _name_of(request.node.nodeid))
        options.setdefault("accept_changes", True)
    try:
        run = osmosis.evaluate(**options)
    except osmosis.OsmosisError as error:
        hint = f"\n  try: {error.hint}" if error.hint else ""
        pytest.fail(f"osmosis: {error.message}{hint}", pytrace=False)
    request.node.stash[_RUN] = run
    request.node.user_properties += _figures(run)
    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """After the test's own assertions: the bars."""
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
            lines = [*missed, *judged.met.lines, f"osmosis eval show {run.folder}", f"osmosis eval report {run.folder}"]
            pytest.fail("\n".join(lines), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each run, also of those that other processes (pytest-xdist) made."""
    reports = [one for key in ("passed", "failed") for one in terminalreporter.stats.get(key, [])]
    shown = [(one.nodeid, found) for one in reports if one.when == "call" and (found := _of_report(one))]
    if not shown:
        return
    terminalreporter.section("osmosis evaluations")
    for nodeid, found in shown:
        rate = found.get("pass_rate", "")
        figures = f"pass rate {rate}" if rate else f"mean {found.get('mean', '-')}"
        terminalreporter.write_line(f"{nodeid}: {figures}, {found.get('rollouts')} rollouts, {found.get('journal')}")
        if found.get("quarantine"):
            terminalreporter.write_line(f"  {found['quarantine']}")


def _of_report(report: pytest.TestReport) -> dict[str, str]:
    pairs = [(name, str(value)) for name, value in report.user_properties]
    return {name[len(_PROPERTY) :]: value for name, value in pairs if name.startswith(_PROPERTY)}


def _bar_names() -> set[str]:
    return {one.name for one in fields(Bars)}


def _overrides(config: pytest.Config, options: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    if config.getoption("--osmosis-model"):
        found["model"] = config.getoption("--osmosis-model")
        found["base_url"] = config.getoption("--osmosis-base-url")
    limit = config.getoption("--osmosis-limit")
    if limit is not None:
        selection = options.get("selection") or osmosis.Selection()
        assert isinstance(selection, osmosis.Selection)
        found["selection"] = selection.model_copy(update={"limit": limit})
    return found


def _name_of(nodeid: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", nodeid).strip("-")[-90:].lstrip("-._") or "test"


def _figures(run: Run) -> list[tuple[str, object]]:
    """For JUnit XML, and for the table at the end."""
    report, found = run.report, run.report.primary
    pairs: list[tuple[str, object]] = [("rollouts", report.completed), ("failed", report.failed)]
    if found is not None:
        pairs += [("score", found.name), ("mean", _shown(found.mean, found.mean_interval))]
        pairs.append(("pass_rate", _shown(found.pass_rate, found.pass_rate_interval)))
    pairs += [("tokens", report.usage.total_tokens), ("cost_usd", report.usage.cost_usd), ("journal", str(run.folder))]
    return [(_PROPERTY + name, value) for name, value in pairs if value is not None]


def _shown(value: float | None, interval: Interval | None) -> str | None:
    if value is None:
        return None
    return f"{value:.4g}" + (f" ({interval.low:.3g} to {interval.high:.3g})" if interval is not None else "")
