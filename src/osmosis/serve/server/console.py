"""Printing for scripts around agents: styles and tables on a terminal, plain text everywhere else.

Text is never read as markup unless a style asks for it, so a model's `[/red]` prints as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.markup import escape as _escape
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

RICH_AVAILABLE = True
"""Always: rich is part of the installation."""


class Console:
    """A console on `file` (stdout at the time of printing). `force_terminal` and `no_color` overrule what it finds."""

    def __init__(
        self, *, file: TextIO | None = None, force_terminal: bool | None = None, no_color: bool = False
    ) -> None:
        self._file = file
        self._force = force_terminal
        self._no_color = no_color

    @property
    def is_tty(self) -> bool:
        """Whether someone looks at it."""
        if self._force is not None:
            return self._force
        try:
            return (self._file or sys.stdout).isatty()
        except ValueError:  # closed
            return False

    @property
    def use_rich(self) -> bool:
        """Whether styles are drawn."""
        return self.is_tty

    def print(self, *args: Any, style: str | None = None, end: str = "\n", **kwargs: Any) -> None:
        """Prints `args` separated by spaces, in `style` when styles are drawn."""
        text = str(kwargs.pop("sep", " ")).join(str(one) for one in args)
        if not self.use_rich:
            print(text, end=end, file=self._file or sys.stdout)
            return
        self._rich().print(Text(text, style=style or ""), end=end, **kwargs)

    def print_error(self, message: str) -> None:
        """Prints to stderr, red when styles are drawn."""
        target = Console(file=sys.stderr, no_color=self._no_color)
        target.print(message, style="red")

    def separator(self, title: str = "", width: int = 60) -> None:
        """A line across, with or without a title."""
        if self.use_rich:
            self._rich().print(Rule(Text(title)) if title else Rule())
        else:
            self.print(f" {title} ".center(width, "=") if title else "=" * width)

    def panel(self, title: str, content: str, *, style: str = "blue", padding: tuple[int, int] = (0, 1)) -> None:
        """A box around `content`."""
        if self.use_rich:
            self._rich().print(Panel(Text(content), title=Text(title), border_style=style, padding=padding))
            return
        self.separator(title)
        self.print(content)
        self.separator()

    def table(
        self, rows: Sequence[Sequence[Any]], *, title: str | None = None, headers: Sequence[str] | None = None
    ) -> None:
        """A table; without styles, columns padded to the same width."""
        cells = [[str(cell) for cell in row] for row in rows]
        if self.use_rich:
            self._rich().print(_table(cells, title, headers))
            return
        if title:
            self.print(title)
        lines = [list(headers)] if headers else []
        lines += cells
        widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(max(map(len, lines), default=0))]
        for line in lines:
            self.print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip())

    def escape(self, text: str) -> str:
        """`text` so that rich markup in it stays text."""
        return _escape(text) if self.use_rich else text

    def format_styled(self, text: str, style: str) -> str:
        """`text` as markup in `style` when styles are drawn, else as it is."""
        return f"[{style}]{_escape(text)}[/{style}]" if self.use_rich else text

    def input(self, prompt: str = "") -> str:
        """Asks for a line."""
        return input(prompt)

    def run_rich(self, draw: Callable[[RichConsole], Any]) -> bool:
        """Calls `draw` with a rich console when styles are drawn; whether it did."""
        if not self.use_rich:
            return False
        draw(self._rich())
        return True

    def _rich(self) -> RichConsole:
        return RichConsole(
            file=self._file or sys.stdout, force_terminal=self._force, no_color=self._no_color, highlight=False
        )


console = Console()
"""The process's console."""


def _table(cells: list[list[str]], title: str | None, headers: Sequence[str] | None) -> Table:
    table = Table(title=Text(title) if title else None, show_header=headers is not None)
    for position in range(max((len(row) for row in cells), default=len(headers or ()))):
        table.add_column(Text(headers[position]) if headers and position < len(headers) else "")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table
