"""How figures look in a terminal: a table per score, then the run, then its failures. Of local and platform runs alike.

Draws what `osmosis.metrics` lists; text of users and models is plain text here, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from osmosis.metrics.alarms import alarms
from osmosis.metrics.figures import Figure, figures, grouped
from osmosis.records.report import FailureCount, Report
from osmosis.records.run_status import at_its_limit

from .drawing import Canvas, Grid, GridColumn, Line
from .render import pairs
from .results import clean

if TYPE_CHECKING:
    from osmosis.records.contract.run_bodies import RunFailure

MAX_EXAMPLE = 160
MAX_ROWS = 5


def draw_report(console: Canvas, report: Report, alarms: Sequence[str] = ()) -> None:
    """Every figure of a report, and what failed."""
    for i, (group, members) in enumerate(grouped(figures(report))):
        if i:
            console.print()
        console.print(figure_table(group or "run", members))
    if report.failures:
        console.print()
        console.print(_failures(report.failures))
    for alarm in alarms:
        console.print(Line(clean(alarm), style="yellow"))


def figure_table(title: str, shown: Sequence[Figure]) -> Grid:
    """One group: label, value, interval (when one figure has it) and what the value is made of."""
    sure = any(figure.interval for figure in shown)
    interval = [GridColumn("95 % interval", whole=True)] if sure else []
    table = Grid([GridColumn(clean(title)), GridColumn("value", right=True), *interval, GridColumn(style="dim")])
    for figure in shown:
        cells = [figure.label, clean(figure.text), *([figure.between] if sure else []), clean(figure.detail)]
        table.add(*cells)
    return table


def _failures(failures: Iterable[FailureCount]) -> Grid:
    titles = ("failures", "where", "rows", "for example")
    table = Grid([GridColumn(title, right=title == "failures") for title in titles])
    for failure in failures:
        example = " ".join(clean(failure.example).split())
        short = example[:MAX_EXAMPLE] + ("..." if len(example) > MAX_EXAMPLE else "")
        rows = ", ".join(map(str, failure.rows[:MAX_ROWS])) + (" ..." if len(failure.rows) > MAX_ROWS else "")
        cells = (f"{failure.count:,}", f"{failure.phase.value}/{failure.category.value}", rows, short)
        table.add(*cells)
    return table


def draw_run(console: Canvas, head: Mapping[str, object], report: Report | None, failure: RunFailure | None) -> None:
    """One run: what it is, its figures, why it failed."""
    console.print(pairs(head))
    if failure:
        console.print()
        limit = at_its_limit(str(head.get("status")), failure.category)
        what = "ended by its own limit" if limit else f"failed in {failure.phase}/{failure.category}"
        console.print(Line(f"{what}: ", style="bold yellow" if limit else "bold red") + Line(clean(failure.message)))
        if failure.fix:
            console.print(Line("  try: ", style="bold") + Line(clean(failure.fix)))
    if report is not None and report.completed:
        console.print()
        over = not str(head.get("status")).startswith(("pending", "running"))
        draw_report(console, report, alarms(report, str(head.get("model") or ""), over=over))
