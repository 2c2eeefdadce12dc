"""What people see while a local run goes on: one bar with rate, time left and the running score, on a terminal only.

In a pipe, in CI and under `--json` nothing is drawn; remarks go through `Output.say`, which knows when to be quiet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...records.report import Report
from ...records.rollout import Rollout
from ..output import Output

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressObserver:
    """An `engine.Observer` for a terminal. `close` before anything else is printed there."""

    def __init__(self, output: Output, *, quiet: bool = False, title: str = "rollouts") -> None:
        self._output = output
        self._quiet = quiet
        self._title = title
        self._progress: Progress | None = None
        self._task: Any = None
        self._last: Report | None = None

    def started(self, total: int, done: int) -> None:
        if not self._output.live or self._quiet:
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._output.console(stderr=True),
            transient=True,
            refresh_per_second=5,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=total or None, completed=done, figures="")

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        if self._progress is None:
            return
        self._progress.advance(self._task)
        if running is not None:
            self._progress.update(self._task, figures=figures(running))

    def stage(self, text: str) -> None:
        if not self._quiet:
            self._output.say(text, style="yellow")

    def finished(self, report: Report) -> None:
        self.close()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def figures(report: Report) -> str:
    """The running score and rate in a few words."""
    parts = []
    if report.duration_ms:
        parts.append(f"{report.completed / report.duration_ms * 1000:.1f}/s")
    if report.primary is not None and report.primary.mean is not None:
        parts.append(f"mean {report.primary.mean:.3f}")
    if report.failed:
        parts.append(f"{report.failed} failed")
    if report.usage.cost_usd:
        parts.append(f"${report.usage.cost_usd:.3f}")
    return "  ".join(parts)
