"""A run of the platform as people see it: followed until it is over, drawn, and judged by its exit code.

Interrupting changes nothing about the run; the same command goes on later. A platform that restarts meanwhile is
waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from osmosis.errors import NetworkError
from osmosis.metrics.judged import Judged, judged
from osmosis.records.contract.run_bodies import NamedRef, RunDetail
from osmosis.records.run_kind import NOUNS
from osmosis.records.run_status import at_its_limit

from .context import AppContext
from .drawing import Canvas, Line
from .figures import draw_run
from .results import NextStep, OperationResult, clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from osmosis.client import PlatformClient
    from osmosis.client.runs import Runs

POLL_S = 0.7
SLOWEST_POLL_S = 5.0
"""A long run is polled less often: one more second per minute waited."""
PATIENCE_S = 120.0
"""How long a platform may be unreachable before the wait gives up."""


def watch(ctx: AppContext, runs: Runs, name: str, *, news: str = "") -> RunDetail:
    """Waits for the end of a run and returns its final state. Ctrl-C prints how to continue and is raised again.

    `news` is said first: who reads it and presses Ctrl-C at once is told the same.
    """
    started = time.monotonic()
    try:
        if news:
            ctx.output.say(news)
        with _meter(ctx, name) as meter:
            while True:
                seen = _patiently(ctx, runs, name)
                meter.show(seen)
                if seen.run.over:
                    return seen
                time.sleep(min(POLL_S + (time.monotonic() - started) / 60, SLOWEST_POLL_S))
    except KeyboardInterrupt:
        noun = NOUNS[runs.whole.kind]
        there = f" --platform {ctx.options.platform}" if ctx.options.platform else ""
        ctx.output.warn(
            "INTERRUPTED",
            f"the run continues; follow it again with: osmosis {noun} wait {name}{there}\n"
            f"stop it with: osmosis {noun} stop {name}{there}",
        )
        raise


def _patiently(ctx: AppContext, runs: Runs, name: str) -> RunDetail:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return runs.get(name)
        except NetworkError as error:
            if time.monotonic() > deadline:
                raise
            ctx.output.warn("NETWORK", f"{error.message}; retrying")
            time.sleep(POLL_S * 2)


def _progress(seen: RunDetail) -> tuple[str, int, int]:
    """Stage (empty when the run is over), done, total: as the job says, not as the report does."""
    progress = seen.run.progress
    if progress is None:
        return "", 0, 0
    return seen.stage, progress.completed or 0, progress.total or 0


class _Lines:
    """Progress where nothing can be redrawn: a remark when the stage or a tenth is passed."""

    def __init__(self, ctx: AppContext, name: str) -> None:
        self._ctx = ctx
        self._name = name
        self._last: tuple[str, str, int] | None = None

    def show(self, seen: RunDetail) -> None:
        stage, completed, total = _progress(seen)
        tenth = completed * 10 // total if total else 0
        now = (seen.run.status, stage, tenth)
        if now == self._last:
            return
        self._last = now
        count = f" {completed}/{total}" if total else ""
        self._ctx.output.say(f"{self._name}: {seen.run.status}" + (f", {stage}{count}" if stage else ""))


class _Bar:
    """Progress on a terminal."""

    def __init__(self, progress: Any, task: object) -> None:
        self._progress = progress
        self._task = task

    def show(self, seen: RunDetail) -> None:
        stage, completed, total = _progress(seen)
        figures = ""
        report = seen.report
        if report is not None and report.primary and report.primary.pass_rate is not None:
            completed, total = report.completed, report.total
            figures = f"pass rate {report.primary.pass_rate * 100:.0f} %"
        what = stage or seen.run.status
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


def head(seen: RunDetail) -> dict[str, str | None]:
    """What people see first."""
    config = seen.config or {}
    commit = (seen.commit_sha or "")[:12]
    stage, completed, total = _progress(seen)
    return {
        "name": seen.run.name,
        "status": f"{seen.run.status} ({stage} {completed}/{total})" if stage else seen.run.status,
        "rollout": (seen.rollout or NamedRef()).name or config.get("rollout"),
        "model": config.get("model_path"),
        "dataset": (seen.dataset or NamedRef()).name,
        "code": f"{commit} ({seen.branch})" if commit and seen.branch else commit or None,
        "created": seen.run.created_at,
        "page": seen.run.platform_url,
    }


def drawn(seen: RunDetail) -> Callable[[Canvas], None]:
    """Draws a run for people."""

    def draw(console: Canvas) -> None:
        draw_run(console, head(seen), seen.report, seen.failure)

    return draw


def brief(seen: RunDetail) -> dict[str, object]:
    """Which run it is, for an envelope."""
    return {"id": seen.run.id, "name": seen.run.name, "url": seen.run.platform_url}


def judged_there(client: PlatformClient, seen: RunDetail) -> Judged | None:
    """The figures that decide about an evaluation, where rows of it are in quarantine at its commit."""
    if seen.report is None or seen.quarantine is None or not seen.quarantine.row:
        return None
    dataset = (seen.dataset or NamedRef()).name or ""
    return judged(lambda: client.evals.outcomes(seen.run.name), seen.report, seen.quarantine, dataset=dataset)


def finished_result(
    operation: str,
    seen: RunDetail,
    *,
    fail_under: float | None = None,
    counted: Judged | None = None,
    resource: Mapping[str, object] | None = None,
) -> OperationResult:
    """The result of a run that is over: exit code 1 when it failed, nothing was scored, or it is below the bar, which
    rows in quarantine do not decide."""
    run, report = seen.run, seen.report
    summary = seen.to_summary()
    code = 0 if run.status == "finished" else 1
    rate = summary.pass_rate
    if counted is not None and counted.met.held:
        rate = counted.report.primary.pass_rate if counted.report.primary else None
    below = fail_under is not None and (rate is None or rate < fail_under)
    message = f"run {run.name} is {run.status}"
    if seen.failure is not None and at_its_limit(run.status, seen.failure.category):
        message = f"{message}: it ended by its own limit, {seen.failure.message}"
    if counted is not None and counted.note:
        message = f"{message}; {counted.note}"
    if seen.unscored:
        message, code = f"{message}; no rollout has a score", 1
    if below:
        shown = "none" if rate is None else f"{rate:.4f}"
        message, code = f"{message}; its pass rate {shown} is below --fail-under {fail_under}", 1
    body = {
        **(resource or brief(seen)),
        "status": run.status,
        "summary": summary.to_dict(),
        "results": seen.figures.to_dict(),
        "report": report.to_dict() if report else None,
        "failure": seen.failure.to_dict() if seen.failure else None,
        **({"quarantine": counted.to_dict()} if counted is not None else {}),
    }

    def draw(console: Canvas) -> None:
        drawn(seen)(console)
        for line in counted.met.lines if counted is not None else ():
            console.print(Line(clean(line), style="yellow"))
        if below or seen.unscored or (counted is not None and counted.note):
            console.print(Line(message, style="red" if code else "yellow"))

    noun = NOUNS[seen.kind]
    steps = [NextStep("show the log", command=f"osmosis {noun} logs {run.name}")] if code and not below else []
    status = "failed" if code else "success"
    return OperationResult(operation, message, body, status=status, human=draw, exit_code=code, next_steps=steps)
