"""How people see a test: one line per row as it ends, then a summary. Text from agents is never markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis.base.json_types import JsonObject
from osmosis.cli.draw_rollout import draw_rollout
from osmosis.cli.drawing import Canvas, Line
from osmosis.cli.output import Mode, Output
from osmosis.cli.results import clean

if TYPE_CHECKING:
    from osmosis.records.report import Report
    from osmosis.records.rollout import Rollout, Score


def format_duration(ms: float) -> str:
    """`250ms`, `3.2s`, `2m5.0s`."""
    if ms < 1000:
        return f"{ms:.0f}ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.1f}s"


def format_tokens(tokens: int) -> str:
    """With thousands separators."""
    return f"{tokens:,}"


class RowLines:
    """An observer that prints one line per row and keeps the rollouts."""

    def __init__(self, output: Output, total: int, results: list[Rollout], *, quiet: bool, whole: bool = False) -> None:
        self._output = output
        self._total = total
        self._results = results
        self._quiet = quiet
        self._whole = whole
        self.expected: dict[int, str | None] = {}
        """What rows expect, where conversations are shown."""
        self.folder: Path | None = None
        """Where whole rollouts are kept, when asked for."""
        self.stopped: str | None = None

    def started(self, total: int, done: int) -> None:
        """The header is printed before."""

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self._results.append(rollout)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(rollout.to_dict(), ensure_ascii=False, indent=2)
            (self.folder / f"row-{rollout.row_index}.json").write_text(text, encoding="utf-8")
        if self._quiet or self._output.mode is Mode.JSON:
            return
        good = rollout.failure is None
        head = f"[{len(self._results)}/{self._total}] Row {rollout.row_index}: {'OK' if good else 'FAILED'}"
        if self._whole and self._output.mode is Mode.RICH:
            console = self._output.console(stderr=True)
            console.print(Line(head, style="bold green" if good else "bold red"))
            draw_rollout(console, rollout, expected=self.expected.get(rollout.row_index))
            return
        scored = "".join(f", {clean(name)} {_score(score)}" for name, score in rollout.scores.items())
        tokens = format_tokens(rollout.usage.total_tokens)
        facts = f"({format_duration(rollout.duration_ms)}, {tokens} tokens{scored})"
        line = f"{head} {facts}"
        if rollout.failure is not None:
            line += f" - {' '.join(rollout.failure.message.split())[:160]}"
        if self._output.mode is Mode.PLAIN:
            self._output.stream({}, line)
        else:
            self._output.say(line, style="green" if good else "red")

    def say(self, text: str, *, keep: bool = False) -> None:
        if not self._quiet:
            self._output.say(text)

    def stage(self, text: str) -> None:
        if not self._quiet:
            self._output.say(text, style="yellow")

    def finished(self, report: Report) -> None:
        self.stopped = getattr(report, "stopped", None)


def _score(score: Score) -> str:
    return "failed" if score.failure is not None else f"{score.value:g}" if score.value is not None else "none"


def draw_summary(console: Canvas, summary: JsonObject, where: list[str], stopped: str | None) -> None:
    """Totals, and where things are."""
    good = summary["failed"] == 0 and not stopped
    line = f"{summary['passed']} of {summary['total']} rows ended well"
    console.print(Line(line, style="green" if good else "red"))
    for name, mean in summary["mean_scores"].items():
        console.print(Line(f"  {clean(name)} {mean:.3g} on average"))
    console.print(Line(f"  time   {format_duration(summary['total_duration_ms'])}"))
    console.print(Line(f"  tokens {format_tokens(int(summary['total_tokens']))}"))
    if stopped:
        console.print(Line(clean(f"  stopped: {stopped}"), style="red"))
    for one in where:
        console.print(Line(f"  {clean(one)}", style="dim"))
