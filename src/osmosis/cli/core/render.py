from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column as TableColumn, Table
from rich.text import Text

from osmosis.cli.core.results import Column, DetailResult, ListResult, OperationResult, Result, clean, pick, when
from osmosis.records.run.status import ended_by_limit

if TYPE_CHECKING:
    from osmosis.metrics.figures import Figure
    from osmosis.records.api.runs import RunFailure
    from osmosis.records.api.training import TrainingMetrics
    from osmosis.records.base import Problem
    from osmosis.records.run.report import Report

NARROW = 100
MAX_ENTRIES = 5
MAX_EXAMPLE = 160
MAX_ROWS = 5
_STATUS_STYLE = {
    "finished": "green", "success": "green", "uploaded": "green", "running": "cyan", "pending": "yellow",
    "failed": "red", "error": "red", "stopped": "yellow",
}  # fmt: skip


def print_text(console: Console, text: object, style: str = "") -> None:
    console.print(Text(clean(text), style=style))


def print_field(console: Console, label: str, value: str, style: str = "default") -> None:
    console.print(Text.assemble((f"{label:<10} ", "dim"), (clean(value), style)))


def draw(console: Console, result: Result) -> None:
    if result.human is not None:
        result.human(console)
    elif result.brief is not None:
        console.print(pairs(result.brief))
    elif isinstance(result, ListResult):
        draw_list(console, result)
    elif isinstance(result, DetailResult):
        if result.title:
            print_text(console, result.title, "bold")
        console.print(pairs(result.data))
    elif isinstance(result, OperationResult):
        print_text(console, result.message, "" if result.exit_code else "green")
    if result.next_steps:
        console.print()
    for step in result.next_steps:
        target = clean(step.command or step.url)
        line = Text(f"  {clean(step.action)}{': ' if target else ''}")
        line.append(target, style="bold cyan")
        console.print(line, soft_wrap=True)  # a command to copy is cut off by nobody


def draw_list(console: Console, result: ListResult) -> None:
    if result.title:
        print_text(console, result.title, "bold")
    if not result.items:
        print_text(console, result.empty, "dim")
        return
    console.print(table(result.columns, result.items, width=console.width))
    total = result.total_count if result.total_count is not None else len(result.items)
    if result.has_more:
        more = f"--limit {total}" if result.more == "--limit" else f"--offset {result.next_offset}, or --all"
        print_text(console, f"{len(result.items)} of {total:,}; more: {more}", "dim")


def new_table(columns: Sequence[TableColumn | str]) -> Table:
    grid = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in grid.columns:
        column.overflow = "fold"
    return grid


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], *, width: int = 120) -> Table:
    columns = [column for column in columns if not (column.wide and width < NARROW)]
    grid = new_table([TableColumn(Text(column.title), style=column.style) for column in columns])
    for column, drawn in zip(columns, grid.columns, strict=True):
        drawn.justify = "right" if column.justify == "right" else "left"
    for row in rows:
        grid.add_row(*(_cell(column, pick(row, column.key)) for column in columns))
    return grid


def _cell(column: Column, value: Any) -> Text:
    text = clean(column.show(value) if column.show else value)
    style = _STATUS_STYLE.get(text.lower(), "") if column.key.endswith("status") else ""
    return Text(text or ("-" if column.title else ""), style=style)


def pairs(data: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, overflow="fold")
    grid.add_column(overflow="fold")
    _fill_pairs(grid, data, 0)
    return grid


def _fill_pairs(grid: Table, data: Mapping[str, object], indent: int) -> None:
    for key, value in data.items():
        if value in (None, {}, [], ""):
            continue
        name = " " * indent + str(key).replace("_", " ")
        if isinstance(value, Mapping):
            grid.add_row(Text(name), "")
            _fill_pairs(grid, value, indent + 2)
        elif isinstance(value, list) and all(not isinstance(v, (dict, list)) for v in value):
            grid.add_row(Text(name), Text(", ".join(clean(v) for v in value)))
        elif isinstance(value, list):
            for i, entry in enumerate(value[:MAX_ENTRIES]):
                values = entry.values() if isinstance(entry, Mapping) else [entry]
                scalars = (clean(v) for v in values if v is not None and not isinstance(v, (dict, list)))
                grid.add_row(Text("" if i else name), Text("  ".join(scalars)))
            if len(value) > MAX_ENTRIES:
                grid.add_row("", f"and {len(value) - MAX_ENTRIES} more")
        else:
            grid.add_row(Text(name), Text(clean(when(value) if str(key).endswith(("_at", " at")) else value)))


# -- figures of a run, local and platform alike ----------------------------------------------------------------------


def draw_report(console: Console, report: Report, alarms: Sequence[str] = ()) -> None:
    from osmosis.metrics.figures import figures, grouped  # only a run has figures

    for i, (group, members) in enumerate(grouped(figures(report))):
        if i:
            console.print()
        console.print(figure_table(group or "run", members))
    if report.failures:
        console.print()
        grid = new_table([TableColumn("failures", justify="right"), "kind", "rows", "for example"])
        for failure in report.failures:
            example = " ".join(clean(failure.example).split())
            short = example[:MAX_EXAMPLE] + ("..." if len(example) > MAX_EXAMPLE else "")
            rows = ", ".join(map(str, failure.rows[:MAX_ROWS])) + (" ..." if len(failure.rows) > MAX_ROWS else "")
            cells = (f"{failure.count:,}", failure_kind(failure.phase, failure.category), rows, short)
            grid.add_row(*map(Text, cells))
        console.print(grid)
    for alarm in alarms:
        print_text(console, alarm, "yellow")


def failure_kind(phase: str | None, category: str | None) -> str:
    """Return `agent error`, or `model: rate limit` where the category does not name the phase."""
    kind = (category or "unknown").replace("_", " ")
    return kind if phase is None or kind.startswith(phase) else phase + ": " + kind  # f"{phase}" is `Phase.MODEL`


def figure_table(title: str, figures: Sequence[Figure]) -> Table:
    has_interval = any(figure.interval for figure in figures)
    interval = [TableColumn("95 % interval", no_wrap=True)] if has_interval else []
    head = [TableColumn(Text(clean(title))), TableColumn("value", justify="right")]
    grid = new_table([*head, *interval, TableColumn("", style="dim")])
    for figure in figures:
        between = [figure.between] if has_interval else []
        grid.add_row(*(Text(cell) for cell in (figure.label, clean(figure.text), *between, clean(figure.detail))))
    return grid


def draw_run(console: Console, head: Mapping[str, object], report: Report | None, failure: RunFailure | None) -> None:
    from osmosis.metrics.warnings import alarms  # only a run has figures

    console.print(pairs(head))
    if failure:
        console.print()
        limit = ended_by_limit(str(head.get("status")), failure.category)
        outcome = "ended by its own limit" if limit else f"failed, {failure_kind(failure.phase, failure.category)}"
        console.print(Text.assemble((f"{outcome}: ", ("bold yellow" if limit else "bold red")), clean(failure.message)))
        if failure.fix:
            console.print(Text.assemble(("  try: ", "bold"), clean(failure.fix)))
    if report is not None and report.completed:
        console.print()
        over = not str(head.get("status")).startswith(("pending", "running"))
        draw_report(console, report, alarms(report, str(head.get("model") or ""), over=over))


def draw_curves(console: Console, curves: TrainingMetrics) -> None:
    if not curves.metrics:
        print_text(console, "no step is finished yet")
        return
    from osmosis.metrics.training import curve_info, sparkline  # only a training has curves

    grid = new_table(
        [
            TableColumn(title, justify="left" if title in ("curve", "course") else "right", no_wrap=title == "course")
            for title in ("curve", "first", "last", "lowest", "highest", "course")
        ]
    )
    courses = {
        curve.metric_key: sparkline([point.value for point in curve.data_points if point.value is not None])
        for curve in curves.metrics
    }
    constant = []
    for row in curves.overview.metric_summaries if curves.overview else []:
        title = clean(row.title or curve_info(row.key).title)
        if row.min == row.max and row.min is not None:
            constant.append(f"{title} {row.min:.4g}")
            continue
        figures = ("-" if v is None else f"{v:.4g}" for v in (row.initial, row.latest, row.min, row.max))
        grid.add_row(Text(title), *figures, courses.get(row.key, ""))
    console.print(grid)
    if constant:
        print_text(console, f"always the same: {', '.join(constant)}", "dim")


def draw_problems(console: Console, problems: Sequence[Problem]) -> None:
    styles = {"error": "red", "warning": "yellow", "info": "dim"}
    for problem in problems:
        where = f"{problem.where}: " if problem.where else ""
        line = Text(f"{problem.severity:<10} ", style=styles[problem.severity])
        line.append(clean(f"{where}{problem.what}"), style="default")
        console.print(line)
        if problem.fix:
            print_text(console, f"           {problem.fix}", "cyan")
    if not any(p.severity != "info" for p in problems):
        print_text(console, "no problems found", "green")
