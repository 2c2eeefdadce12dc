"""Output for people, `--plain` or `--json`. Text of people or models is never markup; its control characters are
escaped."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, TextIO

from osmosis._version import __version__
from osmosis.cli.core.results import SCHEMA_VERSION, Result, clean, to_json
from osmosis.errors import OsmosisError

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 10_000  # Columns of output that is not a terminal, wide enough that no line is folded and `grep` finds it


class Mode(str, Enum):
    RICH = "rich"
    PLAIN = "plain"
    JSON = "json"


class Output:
    def __init__(
        self, mode: Mode, *, environ: Mapping[str, str], stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.mode = mode
        self.environ = environ
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self._warnings: set[str] = set()

    def show(self, result: Result) -> int:
        if self.mode is Mode.JSON:
            self._line(self.stdout, to_json(result.envelope()))
        elif self.mode is Mode.PLAIN:
            for cells in result.cells():
                self._line(self.stdout, "\t".join(clean(cell).replace("\t", " ").replace("\n", " ") for cell in cells))
        else:
            from osmosis.cli.core.render import draw  # rich, which programs do not wait for

            console = self.console()
            if console.is_terminal:
                draw(console, result)
            else:
                with console.capture() as page:
                    draw(console, result)
                for line in page.get().splitlines():
                    self._line(self.stdout, line.rstrip())
        return result.exit_code

    def stream(self, row: Mapping[str, object], text: str) -> None:
        self._line(self.stdout, to_json(row) if self.mode is Mode.JSON else clean(text))

    def say(self, text: str = "", *, style: str = "") -> None:
        """Write a remark to stderr; nothing under `--json` or `--plain`."""
        if self.mode is Mode.RICH:
            self._remark((clean(text), style))

    def warn(self, code: str, message: str) -> None:
        """Warn on stderr, once per text; as an envelope under `--json`."""
        if message in self._warnings:
            return
        self._warnings.add(message)
        if self.mode is Mode.JSON:
            body = {"schema_version": SCHEMA_VERSION, "cli_version": __version__}
            self._line(self.stderr, to_json({**body, "warning": {"code": code, "message": message}}))
        elif self.mode is Mode.PLAIN:
            self._line(self.stderr, f"Warning: {clean(message)}")
        else:
            self.say(f"warning: {message}", style="yellow")

    def error(self, error: OsmosisError, command: str = "") -> int:
        if self.mode is Mode.JSON:
            details = {**error.details, **({"hint": error.hint} if error.hint else {})}
            body: dict[str, object] = {"schema_version": SCHEMA_VERSION, "command": command, "cli_version": __version__}
            code = str(error.details.get("cli_code") or error.code)
            body["error"] = {"code": code, "message": error.message, "details": details}
            self._line(self.stderr, to_json(body))
            return error.exit_code
        self._remark(("Error:", "bold red"), (f" {clean(error.message)}", ""))
        for line in issue_lines(error):
            self._remark((f"  {line}", ""))
        if error.hint:
            self._remark(("  try: ", "bold"), (clean(error.hint), ""))
        return error.exit_code

    def console(self, *, stderr: bool = False) -> "Console":
        from rich.console import Console  # programs do not wait for it

        stream = self.stderr if stderr else self.stdout
        terminal = self._draws_on(stream)
        return Console(
            file=stream,
            force_terminal=terminal,
            no_color=not terminal or bool(self.environ.get("NO_COLOR")),
            width=None if terminal else PIPE_WIDTH,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=not terminal,
        )

    @contextmanager
    def bar(
        self, label: str, total: int, *, done: int = 0, in_bytes: bool = False
    ) -> "Iterator[Callable[[int], None]]":
        """Draw a bar for people while something long goes on; what it yields takes how much more is done."""
        if not self.live or total < (1024 * 1024 if in_bytes else 2):
            yield lambda count: None
            return
        from rich import progress  # programs do not wait for it

        text = progress.TextColumn("{task.description}", markup=False)
        in_numbers = (progress.MofNCompleteColumn(), progress.TimeElapsedColumn())
        figures = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if in_bytes else in_numbers
        columns = (text, progress.BarColumn(), *figures)
        with progress.Progress(*columns, console=self.console(stderr=True), transient=True) as bars:
            task = bars.add_task(label, total=total, completed=done)
            yield lambda count: bars.advance(task, count)

    @property
    def live(self) -> bool:
        return self.mode is Mode.RICH and is_terminal(self.stderr) and not self.environ.get("CI")

    def _remark(self, *pieces: tuple[str, str]) -> None:
        if self.mode is Mode.RICH and self._draws_on(self.stderr):
            from rich.text import Text  # the same

            self.console(stderr=True).print(Text.assemble(*pieces))
        else:
            self._line(self.stderr, "".join(text for text, _ in pieces))

    def _draws_on(self, stream: TextIO) -> bool:
        return is_terminal(stream) and self.environ.get("TERM") != "dumb"

    def _line(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def issue_lines(error: OsmosisError) -> list[str]:
    lines: list[str] = []
    issues = getattr(error, "issues", None) or error.details.get("issues", [])
    if len(issues) == 1 and str(issues[0].get("message")) in error.message:
        return lines  # the message says it
    for issue in issues:
        where = issue.get("where") or issue.get("key") or ""
        correction = issue.get("key_correction")
        has_guess = "did you mean" in str(issue.get("message"))
        tail = f" (did you mean {clean(correction)}?)" if correction and not has_guess else ""
        lines.append(f"{clean(where)}: {clean(issue.get('message'))}{tail}" if where else clean(issue.get("message")))
    return lines
