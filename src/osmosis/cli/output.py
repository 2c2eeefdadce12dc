"""The one place where results are shown: for people (rich), `--plain` or `--json`.

Error codes and streams are those of contract B: results on stdout, errors, warnings and progress on stderr. Text that
came from people or models is never interpreted as markup, and its control characters are shown instead of sent to the
terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, TextIO

from osmosis._version import __version__
from osmosis.errors import OsmosisError

from .drawing import Line, PlainCanvas
from .results import SCHEMA_VERSION, DetailResult, ListResult, OperationResult, Result, clean, pick, to_json

if TYPE_CHECKING:
    from rich.console import Console


class Mode(str, Enum):
    """Who reads the output."""

    RICH = "rich"
    PLAIN = "plain"
    JSON = "json"


class Output:
    """The streams of one command, in one mode. Everything the command line writes passes here."""

    def __init__(
        self,
        mode: Mode,
        *,
        environ: Mapping[str, str],
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.mode = mode
        self.environ = environ
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self._warned: set[str] = set()

    # -- results ---------------------------------------------------------------------------------------------
    def show(self, result: Result) -> int:
        """Render a result; returns the exit code of the process."""
        if self.mode is Mode.JSON:
            self._line(self.stdout, to_json(result.envelope()))
        elif self.mode is Mode.PLAIN:
            for cells in _plain(result):
                self._line(self.stdout, "\t".join(_cell(c) for c in cells))
        else:
            from .render import draw

            if self._on_terminal(self.stdout):
                draw(self.console(), result)
            else:
                page = PlainCanvas(self._pipe_width, self.console)
                draw(page, result)
                for line in page.lines:
                    self._line(self.stdout, line)
        return result.exit_code

    def stream(self, row: Mapping[str, object], text: str) -> None:
        """One line of something that goes on (`logs -f`): JSON line or text."""
        self._line(self.stdout, to_json(row) if self.mode is Mode.JSON else clean(text))

    # -- beside the result -----------------------------------------------------------------------------------
    def say(self, text: str = "", *, style: str = "") -> None:
        """A remark for people while a command works: stderr, nothing under `--json` or `--plain`."""
        if self.mode is Mode.RICH:
            self._beside(Line(clean(text), style))

    def warn(self, code: str, message: str) -> None:
        """A warning, once per text: for people a line on stderr, under `--json` an envelope."""
        if message in self._warned:
            return
        self._warned.add(message)
        if self.mode is Mode.JSON:
            body = {"schema_version": SCHEMA_VERSION, "cli_version": __version__}
            self._line(self.stderr, to_json({**body, "warning": {"code": code, "message": message}}))
        elif self.mode is Mode.PLAIN:
            self._line(self.stderr, f"Warning: {clean(message)}")
        else:
            self.say(f"warning: {message}", style="yellow")

    def error(self, error: OsmosisError, command: str = "") -> int:
        """Show a known error on stderr; returns its exit code."""
        if self.mode is Mode.JSON:
            details = {**error.details, **({"hint": error.hint} if error.hint else {})}
            body: dict[str, object] = {"schema_version": SCHEMA_VERSION, "command": command, "cli_version": __version__}
            code = str(error.details.get("cli_code") or error.code)
            body["error"] = {"code": code, "message": error.message, "details": details}
            self._line(self.stderr, to_json(body))
            return error.exit_code
        lines = [f"Error: {clean(error.message)}", *(f"  {line}" for line in issue_lines(error))]
        hint = f"  try: {clean(error.hint)}" if error.hint else ""
        if self.mode is Mode.PLAIN:
            for line in [*lines, *([hint] if hint else [])]:
                self._line(self.stderr, line)
            return error.exit_code
        self._beside(Line(lines[0][:6], style="bold red") + Line(lines[0][6:]))
        for line in lines[1:]:
            self._beside(Line(line))
        if hint:
            self._beside(Line("  try: ", style="bold") + Line(clean(error.hint)))
        return error.exit_code

    # -- plumbing --------------------------------------------------------------------------------------------
    def console(self, *, stderr: bool = False) -> Console:
        """A rich console that draws no markup, no emoji, no guesses; colours only on a terminal."""
        from rich.console import Console

        stream = self.stderr if stderr else self.stdout
        terminal = self._on_terminal(stream)
        width = None if terminal else self._pipe_width
        return Console(
            file=stream,
            force_terminal=terminal,
            no_color=not terminal or bool(self.environ.get("NO_COLOR")),
            width=width,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=not terminal,
        )

    def _beside(self, line: Line) -> None:
        if self._on_terminal(self.stderr):
            self.console(stderr=True).print(line)
        else:
            self._line(self.stderr, line.plain)

    def _on_terminal(self, stream: TextIO) -> bool:
        return _is_terminal(stream) and self.environ.get("TERM") != "dumb"

    @property
    def _pipe_width(self) -> int:
        return int(self.environ.get("COLUMNS") or 0) or 160

    @property
    def live(self) -> bool:
        """May progress be drawn: for people, on a terminal, not in CI."""
        return self.mode is Mode.RICH and _is_terminal(self.stderr) and not self.environ.get("CI")

    def _line(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def issue_lines(error: OsmosisError) -> list[str]:
    """The single problems of a validation error, one line each, with did-you-mean."""
    lines: list[str] = []
    issues = getattr(error, "issues", None) or error.details.get("issues", [])
    if len(issues) == 1 and str(issues[0].get("message")) in error.message:
        return lines  # said already
    for issue in issues:
        where = issue.get("where") or issue.get("key") or ""
        correction = issue.get("key_correction")
        said = "did you mean" in str(issue.get("message"))
        tail = f" (did you mean {clean(correction)}?)" if correction and not said else ""
        lines.append(f"{clean(where)}: {clean(issue.get('message'))}{tail}" if where else clean(issue.get("message")))
    return lines


def _cell(value: object) -> str:
    return clean(value).replace("\t", " ").replace("\n", " ")


def _plain(result: Result) -> Iterable[list[object]]:
    if isinstance(result, ListResult):
        for row in result.items:
            yield [pick(row, column.key) for column in result.columns]
    elif isinstance(result, DetailResult):
        yield from _flat(result.data)
    elif isinstance(result, OperationResult):
        yield [result.message]
        yield from _flat(result.resource)


def _flat(data: Mapping[str, object], prefix: str = "") -> Iterable[list[object]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield [f"{prefix}{key}", value]
