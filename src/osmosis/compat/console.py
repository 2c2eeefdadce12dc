"""The console of generation 0.2: styles and tables on a terminal, plain text everywhere else.

Text is never read as markup unless a style asks for it, so a model's `[/red]` prints as it is."""

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


class Console:
    def __init__(
        self, *, file: TextIO | None = None, force_terminal: bool | None = None, no_color: bool = False
    ) -> None:
        self._file = file
        self._force = force_terminal
        self._no_color = no_color

    @property
    def is_tty(self) -> bool:
        if self._force is not None:
            return self._force
        try:
            return (self._file or sys.stdout).isatty()
        except ValueError:  # closed
            return False

    @property
    def use_rich(self) -> bool:
        return self.is_tty

    def print(self, *args: Any, style: str | None = None, end: str = "\n", **kwargs: Any) -> None:
        text = str(kwargs.pop("sep", " ")).join(str(arg) for arg in args)
        if not self.use_rich:
            print(text, end=end, file=self._file or sys.stdout)
            return
        self._rich().print(Text(text, style=style or ""), end=end, **kwargs)

    def print_error(self, message: str) -> None:
        target = Console(file=sys.stderr, no_color=self._no_color)
        target.print(message, style="red")

    def separator(self, title: str = "", width: int = 60) -> None:
        if self.use_rich:
            self._rich().print(Rule(Text(title)) if title else Rule())
        else:
            self.print(f" {title} ".center(width, "=") if title else "=" * width)

    def panel(self, title: str, content: str, *, style: str = "blue", padding: tuple[int, int] = (0, 1)) -> None:
        if self.use_rich:
            self._rich().print(Panel(Text(content), title=Text(title), border_style=style, padding=padding))
            return
        self.separator(title)
        self.print(content)
        self.separator()

    def table(
        self, rows: Sequence[Sequence[Any]], *, title: str | None = None, headers: Sequence[str] | None = None
    ) -> None:
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
        return _escape(text) if self.use_rich else text

    def format_styled(self, text: str, style: str) -> str:
        return f"[{style}]{_escape(text)}[/{style}]" if self.use_rich else text

    def input(self, prompt: str = "") -> str:
        return input(prompt)

    def run_rich(self, draw: Callable[[RichConsole], Any]) -> bool:
        if not self.use_rich:
            return False
        draw(self._rich())
        return True

    def _rich(self) -> RichConsole:
        return RichConsole(
            file=self._file or sys.stdout, force_terminal=self._force, no_color=self._no_color, highlight=False
        )


console = Console()


def _table(cells: list[list[str]], title: str | None, headers: Sequence[str] | None) -> Table:
    table = Table(title=Text(title) if title else None, show_header=headers is not None)
    for position in range(max((len(row) for row in cells), default=len(headers or ()))):
        table.add_column(Text(headers[position]) if headers and position < len(headers) else "")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table
