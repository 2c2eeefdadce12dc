"""How people see a result: tables that fit the terminal, key and value pairs, one sentence and what comes next.

Draws what `output` hands over and decides nothing; a result with its own `human` drawing is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def draw(console: Console, result: Result) -> None:
    """Draw one result for people."""
    if result.human is not None:
        result.human(console)
    elif result.brief is not None:
        console.print(pairs(result.brief))
    elif isinstance(result, ListResult):
        _draw_list(console, result)
    elif isinstance(result, DetailResult):
        if result.title:
            console.print(Text(clean(result.title), style="bold"))
        console.print(pairs(result.data))
    elif isinstance(result, OperationResult):
        console.print(Text(clean(result.message), style="" if result.exit_code else "green"))
    draw_steps(console, result.next_steps)


def draw_steps(console: Console, steps: Sequence[NextStep]) -> None:
    """What to type or open next."""
    if steps:
        console.print()
    for step in steps:
        target = Text(clean(step.command or step.url), style="bold cyan", no_wrap=True, overflow="ignore")
        console.print(Text(f"  {clean(step.action)}: ") + target, soft_wrap=True)


def _draw_list(console: Console, result: ListResult) -> None:
    if result.title:
        console.print(Text(clean(result.title), style="bold"))
    if not result.items:
        console.print(Text(clean(result.empty), style="dim"))
        return
    console.print(table(result.columns, result.items, width=console.width))
    total = result.total_count if result.total_count is not None else len(result.items)
    if result.has_more:
        shown = f"{len(result.items)} of {total}; more: --offset {result.next_offset}, or --all"
        console.print(Text(shown, style="dim"))


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], *, width: int = 120) -> Table:
    """A table of rows; columns marked `wide` are dropped on a narrow terminal."""
    kept = [c for c in columns if not (c.wide and width < NARROW)]
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in kept:
        justify: Any = column.justify
        drawn.add_column(Text(column.title), justify=justify, style=column.style, overflow="fold")
    for row in rows:
        drawn.add_row(*(_shown(column, pick(row, column.key)) for column in kept))
    return drawn


def _shown(column: Column, value: Any) -> Text:
    text = clean(column.show(value) if column.show else value)
    style = _STATUS_STYLE.get(text.lower(), "") if column.key.endswith("status") else ""
    return Text(text or "-", style=style)


def pairs(data: Mapping[str, Any], *, indent: int = 0) -> Table:
    """Keys and values in two columns; nested tables indented, empty values left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    _fill(grid, data, indent)
    return grid


def _fill(grid: Table, data: Mapping[str, object], indent: int) -> None:
    pad = " " * indent
    for key, value in data.items():
        if value is None or value == {} or value == []:
            continue
        name = pad + str(key).replace("_", " ")
        if isinstance(value, Mapping):
            grid.add_row(Text(name), Text(""))
            _fill(grid, value, indent + 2)
        elif isinstance(value, list) and all(not isinstance(v, (dict, list)) for v in value):
            grid.add_row(Text(name), Text(", ".join(clean(v) for v in value)))
        elif isinstance(value, list):
            for i, entry in enumerate(value[:MAX_ENTRIES]):
                grid.add_row(Text("" if i else name), Text(_brief(entry)))
            if len(value) > MAX_ENTRIES:
                grid.add_row(Text(""), Text(f"and {len(value) - MAX_ENTRIES} more"))
        else:
            grid.add_row(Text(name), Text(clean(value)))


def _brief(entry: object) -> str:
    """A nested object on one line: its scalars."""
    if not isinstance(entry, Mapping):
        return clean(entry)
    return "  ".join(clean(v) for v in entry.values() if v is not None and not isinstance(v, (dict, list)))
