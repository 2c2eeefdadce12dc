"""How a run's figures look in a terminal: the report as tables, failures with their reason, the page's address.

Draws records and platform bodies; computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..records.report import Interval, Report, ScoreReport
from .output import clean
from .render import pairs
from .render_text import duration

MAX_EXAMPLE = 160


def draw_run(console: Console, head: dict[str, Any], report: Report | None, failure: dict[str, Any] | None) -> None:
    """One run: what it is, its figures, why it failed."""
    console.print(pairs(head))
    if failure:
        console.print()
        phase = f"{failure.get('phase')}/{failure.get('category')}"
        console.print(Text(f"failed in {phase}: ", style="bold red") + Text(clean(failure.get("message"))))
        if failure.get("fix"):
            console.print(Text("  try: ", style="bold") + Text(clean(failure["fix"])))
    if report is not None and report.completed:
        console.print()
        draw_report(console, report)


def draw_report(console: Console, report: Report) -> None:
    """The figures of a report."""
    for score in report.scores:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        table.add_column(Text(score.name))
        table.add_column("Value", justify="right")
        table.add_column("95 % interval")
        for name, value, interval in _score_rows(score, report):
            table.add_row(Text(name), Text(value), Text(interval))
        console.print(table)
        console.print()
    console.print(pairs(_totals(report)))
    if report.failures:
        console.print()
        console.print(_failures(report))


def _score_rows(score: ScoreReport, report: Report) -> Iterable[tuple[str, str, str]]:
    yield "reward mean (failures as 0)", _number(score.mean), _interval(score.mean_interval)
    if score.failed:
        yield f"reward mean over {score.scored} scored", _number(score.mean_scored), ""
    yield "reward std", _number(score.std), ""
    passed = f"{score.passed}/{score.scored + score.failed}"
    yield (
        f"pass rate (score >= {report.pass_threshold:g})",
        f"{_percent(score.pass_rate)}  {passed}",
        _percents(score.pass_rate_interval),
    )
    for point in score.pass_at_k:
        yield f"pass@{point.k}", _percent(point.value), _percents(point.interval)
    if score.flake_rate is not None:
        yield "rows whose attempts disagree", _percent(score.flake_rate), ""


def _totals(report: Report) -> dict[str, Any]:
    usage = report.usage
    dataset = f" of {report.dataset_rows}" if report.dataset_rows else ""
    shown: dict[str, Any] = {
        "rollouts": f"{report.completed} of {report.total} ({report.rows}{dataset} rows x {report.attempts})",
        "failed": report.failed or None,
        "skipped": report.skipped or None,
        "tokens": f"{usage.total_tokens} ({usage.prompt_tokens} in, {usage.completion_tokens} out)",
        "cost": f"{usage.cost_usd:.4f} USD" if usage.cost_usd is not None else None,
        "duration": duration(report.duration_ms),
        "stopped": report.stopped,
    }
    if report.latency_ms:
        shown["per rollout"] = f"median {duration(report.latency_ms.median)}, p90 {duration(report.latency_ms.p90)}"
    return shown


def _failures(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for title in ("Failures", "Phase", "Category", "Why, for example"):
        table.add_column(title, justify="right" if title == "Failures" else "left", overflow="fold")
    for failure in report.failures:
        example = clean(failure.example).replace("\n", " ")
        shown = example[:MAX_EXAMPLE] + ("..." if len(example) > MAX_EXAMPLE else "")
        table.add_row(str(failure.count), Text(failure.phase.value), Text(failure.category.value), Text(shown))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def _interval(interval: Interval | None) -> str:
    return f"{interval.low:.4f} .. {interval.high:.4f}" if interval else ""


def _percents(interval: Interval | None) -> str:
    return f"{interval.low * 100:.1f} .. {interval.high * 100:.1f} %" if interval else ""
