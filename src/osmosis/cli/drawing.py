"""What is drawn for people before it is known where: lines of styled text, tables, and what they are drawn on.

A terminal gets them from rich, which knows its width and colours. A pipe gets plain text, and no rich is loaded for it:
that is a tenth of the start of an evaluation. Nothing is folded there, so that a search finds a line whole.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from osmosis.base.light_dataclass import dataclass

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


class Canvas(Protocol):
    """What a drawing is drawn on: a rich console, or a `PlainCanvas`."""

    @property
    def width(self) -> int: ...
    @property
    def is_terminal(self) -> bool: ...
    def print(self, *drawn: Any, soft_wrap: bool | None = None, markup: bool | None = None) -> None: ...


class Line:
    """Text in pieces, each with a style; it may have line breaks. Never markup."""

    __slots__ = ("pieces", "whole")

    def __init__(self, text: str = "", style: str = "", *, whole: bool = False) -> None:
        self.pieces = [(text, style)]
        self.whole = whole
        """Longer than the terminal is wide, it is cut off by nobody: a command to copy."""

    def __add__(self, other: Line) -> Line:
        joined = Line(whole=self.whole or other.whole)
        joined.pieces = self.pieces + other.pieces
        return joined

    def append(self, text: str, style: str = "") -> None:
        self.pieces.append((text, style))

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def __rich__(self) -> Text:
        from rich.text import Text

        if self.whole:
            return Text("", no_wrap=True, overflow="ignore").append_tokens(self.pieces)
        return Text().append_tokens(self.pieces)


@dataclass(frozen=True)
class GridColumn:
    """One column of a `Grid`."""

    title: str = ""
    """Of one line."""
    right: bool = False
    """For numbers."""
    style: str = ""
    whole: bool = False
    """Never folded."""


class Grid:
    """Cells in columns, under a head with a rule, or without one as a list of keys and values."""

    def __init__(self, columns: Sequence[GridColumn], *, head: bool = True) -> None:
        self.columns = columns
        self.head = head
        self.rows: list[list[Line]] = []

    def add(self, *cells: Line | str) -> None:
        self.rows.append([cell if isinstance(cell, Line) else Line(cell) for cell in cells])

    def __rich__(self) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        if self.head:
            table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        else:
            table = Table.grid(padding=(0, 2))
        for column in self.columns:
            table.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                style=column.style,
                overflow="fold",
                no_wrap=column.whole,
            )
        for row in self.rows:
            table.add_row(*(cell.__rich__() for cell in row))
        return table

    def lines(self) -> Iterator[str]:
        """The same as plain text, however wide that is."""
        cells = [[cell.plain.split("\n") for cell in row] for row in self.rows]
        if self.head:
            cells.insert(0, [[column.title] for column in self.columns])
        widths = [
            max((_width(line) for row in cells for line in row[at]), default=0) for at in range(len(self.columns))
        ]
        gap = "   " if self.head else "  "
        for number, row in enumerate(cells):
            for parts in zip_longest(*row, fillvalue=""):
                padded = [_padded(*one) for one in zip(parts, widths, self.columns, strict=True)]
                yield gap.join(padded).rstrip()
            if self.head and not number:
                yield "─" * (sum(widths) + len(gap) * (len(widths) - 1))


def _padded(text: str, width: int, column: GridColumn) -> str:
    blank = " " * (width - _width(text))
    return blank + text if column.right else text + blank


def _width(text: str) -> int:
    """In cells of a terminal: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


class PlainCanvas:
    """A canvas of lines of plain text. `rich` draws what is none of ours."""

    is_terminal = False

    def __init__(self, width: int, rich: Callable[[], Console]) -> None:
        self.width = width
        self.lines: list[str] = []
        self._rich = rich

    def print(self, *drawn: Any, soft_wrap: bool | None = None, markup: bool | None = None) -> None:
        if not drawn:
            self.lines.append("")
        elif len(drawn) == 1 and isinstance(drawn[0], (str, Line, Grid)):
            self.lines += _lines(drawn[0])
        else:
            console = self._rich()
            with console.capture() as captured:
                console.print(*drawn, soft_wrap=soft_wrap, markup=markup)
            self.lines += [line.rstrip() for line in captured.get().splitlines()]


def _lines(one: str | Line | Grid) -> Iterable[str]:
    if isinstance(one, Grid):
        return one.lines()
    return [line.rstrip() for line in (one if isinstance(one, str) else one.plain).split("\n")]
