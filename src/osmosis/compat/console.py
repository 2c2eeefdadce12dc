"""The console of 0.2. Text is markup only where a style asks for it, so a model's `[/red]` prints as it is."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE
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

    use_rich = is_tty

    def print(self, *args: Any, style: str | None = None, end: str = "\n", **kwargs: Any) -> None:
        text = str(kwargs.pop("sep", " ")).join(str(arg) for arg in args)
        self._rich().print(Text(text, style=style or ""), end=end, soft_wrap=True, **kwargs)

    def print_error(self, message: str) -> None:
        Console(file=sys.stderr, no_color=self._no_color).print(message, style="red")

    def separator(self, title: str = "", width: int = 60) -> None:
        characters = "─" if self.is_tty else "="
        self._rich().print(Rule(Text(title), characters=characters), width=None if self.is_tty else width)

    def panel(self, title: str, content: str, *, style: str = "blue", padding: tuple[int, int] = (0, 1)) -> None:
        self._rich().print(Panel(Text(content), title=Text(title), border_style=style, padding=padding))

    def table(
        self, rows: Sequence[Sequence[Any]], *, title: str | None = None, headers: Sequence[str] | None = None
    ) -> None:
        heading, box = Text(title) if title else None, SIMPLE if self.is_tty else None
        table = Table(title=heading, show_header=headers is not None, box=box, pad_edge=False, padding=(0, 2, 0, 0))
        for position in range(max((len(row) for row in rows), default=len(headers or ()))):
            table.add_column(Text(headers[position]) if headers and position < len(headers) else "")
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        self._rich().print(table)

    def escape(self, text: str) -> str:
        return _escape(text) if self.is_tty else text

    def format_styled(self, text: str, style: str) -> str:
        return f"[{style}]{_escape(text)}[/{style}]" if self.is_tty else text

    def input(self, prompt: str = "") -> str:
        return input(prompt)

    def run_rich(self, draw: Callable[[RichConsole], Any]) -> bool:
        if self.is_tty:
            draw(self._rich())
        return self.is_tty

    def _rich(self) -> RichConsole:
        return RichConsole(
            file=self._file or sys.stdout, force_terminal=self._force, no_color=self._no_color, highlight=False
        )


console = Console()
