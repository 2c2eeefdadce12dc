"""Following a run until it is over: live progress on a terminal, a line per change elsewhere.

Interrupting changes nothing about the run; the same command goes on later. A platform that restarts meanwhile is
waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..client.runs import Runs
from ..errors import NetworkError
from .context import AppContext
from .run_body import RunView

POLL_S = 0.7
SLOWEST_POLL_S = 5.0
"""A run that takes long is asked about less often: one more second per minute waited."""
PATIENCE_S = 120.0
"""How long a platform may be away before the wait gives up."""


def watch(ctx: AppContext, runs: Runs, kind: str, name: str) -> RunView:
    """Wait for the end of a run; its final state. Ctrl-C says how to go on and passes through."""
    started = time.monotonic()
    try:
        with _meter(ctx, name) as meter:
            while True:
                view = RunView(kind, _patiently(ctx, runs, name))
                meter.show(view)
                if view.over:
                    return view
                time.sleep(min(POLL_S + (time.monotonic() - started) / 60, SLOWEST_POLL_S))
    except KeyboardInterrupt:
        group = "eval" if kind == "eval" else "train"
        ctx.output.warn("INTERRUPTED", f"the run goes on; follow it again with: osmosis {group} wait {name}")
        raise


def _patiently(ctx: AppContext, runs: Runs, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return runs.get(name)
        except NetworkError as error:
            if time.monotonic() > deadline:
                raise
            ctx.output.warn("NETWORK", f"{error.message}; waiting for it to come back")
            time.sleep(POLL_S * 2)


class _Lines:
    """Progress where nothing can be redrawn: a remark when the stage or a tenth is passed."""

    def __init__(self, ctx: AppContext, name: str) -> None:
        self._ctx = ctx
        self._name = name
        self._last: tuple[str, str, int] | None = None

    def show(self, view: RunView) -> None:
        stage, completed, total = view.progress
        tenth = completed * 10 // total if total else 0
        now = (view.status, stage, tenth)
        if now == self._last:
            return
        self._last = now
        count = f" {completed}/{total}" if total else ""
        self._ctx.output.say(f"{self._name}: {view.status}" + (f", {stage}{count}" if stage and not view.over else ""))


class _Bar:
    """Progress on a terminal."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress = progress
        self._task = task

    def show(self, view: RunView) -> None:
        stage, completed, total = view.progress
        figures = ""
        report = view.report
        if report is not None and report.primary and report.primary.pass_rate is not None:
            completed, total = report.completed, report.total
            figures = f"pass rate {report.primary.pass_rate * 100:.0f} %"
        what = stage if stage and not view.over else view.status
        self._progress.update(self._task, description=what, completed=completed, total=total or None, figures=figures)


@contextmanager
def _meter(ctx: AppContext, name: str) -> Iterator[_Lines | _Bar]:
    if not ctx.output.live:
        yield _Lines(ctx, name)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn(name, markup=False),
        TextColumn("{task.description:<11}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn("{task.completed}/{task.total}", markup=False),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ctx.output.console(stderr=True), transient=True) as progress:
        yield _Bar(progress, progress.add_task("pending", total=None, figures=""))
