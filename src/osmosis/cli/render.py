"""How people see a result: tables that fit the terminal, key and value pairs, one sentence and what comes next.

Draws what `output` hands over and decides nothing; a result with its own `human` drawing is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .drawing import Canvas, Grid, GridColumn, Line
from .results import Column, DetailResult, ListResult, NextStep, OperationResult, Result, clean, pick

NARROW = 100
MAX_ENTRIES = 5
_STATUS_STYLE = {
    "finished": "green",
    "success": "green",
    "uploaded": "green",
    "running": "cyan",
    "pending": "yellow",
    "failed": "red",
    "error": "red",
    "stopped": "yellow",
}


def draw(console: Canvas, result: Result) -> None:
    """Draw one result for people."""
    if result.human is not None:
        result.human(console)
    elif result.brief is not None:
        console.print(pairs(result.brief))
    elif isinstance(result, ListResult):
        _draw_list(console, result)
    elif isinstance(result, DetailResult):
        if result.title:
            console.print(Line(clean(result.title), style="bold"))
        console.print(pairs(result.data))
    elif isinstance(result, OperationResult):
        console.print(Line(clean(result.message), style="" if result.exit_code else "green"))
    draw_steps(console, result.next_steps)


def draw_steps(console: Canvas, steps: Sequence[NextStep]) -> None:
    """What to type or open next."""
    if steps:
        console.print()
    for step in steps:
        target = Line(clean(step.command or step.url), style="bold cyan", whole=True)
        console.print(Line(f"  {clean(step.action)}: ") + target, soft_wrap=True)


def _draw_list(console: Canvas, result: ListResult) -> None:
    if result.title:
        console.print(Line(clean(result.title), style="bold"))
    if not result.items:
        console.print(Line(clean(result.empty), style="dim"))
        return
    console.print(table(result.columns, result.items, width=console.width))
    total = result.total_count if result.total_count is not None else len(result.items)
    if result.has_more:
        shown = f"{len(result.items)} of {total}; more: --offset {result.next_offset}, or --all"
        console.print(Line(shown, style="dim"))


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], *, width: int = 120) -> Grid:
    """A table of rows; columns marked `wide` are dropped on a narrow terminal."""
    kept = [c for c in columns if not (c.wide and width < NARROW)]
    drawn = Grid([GridColumn(one.title, one.justify == "right", one.style) for one in kept])
    for row in rows:
        drawn.add(*(_shown(column, pick(row, column.key)) for column in kept))
    return drawn


def _shown(column: Column, value: Any) -> Line:
    text = clean(column.show(value) if column.show else value)
    style = _STATUS_STYLE.get(text.lower(), "") if column.key.endswith("status") else ""
    return Line(text or "-", style=style)


def pairs(data: Mapping[str, Any], *, indent: int = 0) -> Grid:
    """Keys and values in two columns; nested tables indented, empty values left out."""
    grid = Grid([GridColumn(style="dim", whole=True), GridColumn()], head=False)
    _fill(grid, data, indent)
    return grid


def _fill(grid: Grid, data: Mapping[str, object], indent: int) -> None:
    pad = " " * indent
    for key, value in data.items():
        if value is None or value == {} or value == []:
            continue
        name = pad + str(key).replace("_", " ")
        if isinstance(value, Mapping):
            grid.add(Line(name), Line(""))
            _fill(grid, value, indent + 2)
        elif isinstance(value, list) and all(not isinstance(v, (dict, list)) for v in value):
            grid.add(Line(name), Line(", ".join(clean(v) for v in value)))
        elif isinstance(value, list):
            for i, entry in enumerate(value[:MAX_ENTRIES]):
                grid.add(Line("" if i else name), Line(_brief(entry)))
            if len(value) > MAX_ENTRIES:
                grid.add(Line(""), Line(f"and {len(value) - MAX_ENTRIES} more"))
        else:
            grid.add(Line(name), Line(clean(value)))


def _brief(entry: object) -> str:
    """A nested object on one line: its scalars."""
    if not isinstance(entry, Mapping):
        return clean(entry)
    return "  ".join(clean(v) for v in entry.values() if v is not None and not isinstance(v, (dict, list)))
