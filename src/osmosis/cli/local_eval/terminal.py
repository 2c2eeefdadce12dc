"""A local run started from a terminal: progress, questions, Ctrl-C, and the result that is shown.

Everything about the run itself is `osmosis.local`. In a pipe, in CI and under `--json` nothing is drawn and nothing is
asked; remarks go through `Output.say`, which knows when to be quiet. What user code prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.cli.context import AppContext
from osmosis.cli.environment import allow_host
from osmosis.cli.output import Mode, Output
from osmosis.cli.prompts import confirm
from osmosis.cli.results import DetailResult
from osmosis.engine.journal import Journal
from osmosis.engine.result_rows import Gathered
from osmosis.engine.results import check_output, config_part, summary_part, write_results
from osmosis.errors import OsmosisError, ValidationError
from osmosis.local.forked import fork_workers
from osmosis.local.prepare import prepare
from osmosis.local.prepared import Confirm, Declined, Prepared
from osmosis.local.quarantine_file import file_around, judged_by, read
from osmosis.local.request import Request
from osmosis.local.run import Run
from osmosis.local.worker_process import serve
from osmosis.metrics.figures import comparison_line
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout
from osmosis.sdk.calls import alone

from .show import draw_report, exit_code, next_steps

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

CUT_OFF_S = 8.0
"""How long a run may take to end after the second signal, before its process is ended."""


@dataclass(frozen=True)
class Ending:
    """What is done with the figures when a run is over."""

    output: Path | None = None
    fail_under: float | None = None
    yes: bool = False
    quiet: bool = False


def run_local(ctx: AppContext, request: Request, ending: Ending) -> DetailResult | int:
    """Runs the request here and returns what there is to show."""
    if ending.output is not None:
        check_output(ending.output)
        if ending.output.resolve() == request.dataset.resolve():
            raise ValidationError(f"-o {ending.output} would overwrite the dataset", hint="choose another file")
    terminal = Terminal(ctx.output, quiet=ending.quiet)
    answers = answers_of(ctx, yes=ending.yes)
    with print_aside():
        forked = fork_workers(request.workers, serve)  # before the person's code is loaded, which may not bear it
        try:
            prepared = prepare(request, forked=forked)
        except BaseException:
            for worker in forked:
                worker.close()
            raise
        try:
            _announce(ctx, prepared, terminal, quiet=ending.quiet)
            prepared.agree(answers)
            journal = prepared.journal if ending.output is not None else None
            gathered = Gathered(journal, prepared.plan) if journal is not None else None
            run, interrupted = run_stoppable(
                lambda stop: prepared.run(terminal, confirm=answers, stop=stop), terminal.say
            )
        except Declined as declined:
            terminal.say(declined.message)
            return 0
        finally:
            terminal.close()
            prepared.close()
        more: dict[str, object] = {"baselines": _baselines(prepared, run, terminal.kept)} if run.baselines else {}
        if ending.output is not None:
            write_results(ending.output, _journal(prepared, run), run.plan, run.report, gathered, **more)
    return _result(ctx, prepared, run, ending, terminal.kept, more, interrupted=interrupted)


def answers_of(ctx: AppContext, *, yes: bool) -> Confirm | None:
    """Who answers a run's questions: the flag, the person at the terminal, or nobody."""
    if yes:
        return lambda _: True
    return (lambda question: confirm(ctx, question, yes=False)) if ctx.interactive else None


def let_through(ctx: AppContext, prepared: Prepared) -> None:
    """Under `--offline`, the endpoints that the command line itself named."""
    for one in (prepared, *prepared.baselines):
        if ctx.options.offline and one.plan.model.base_url:
            allow_host(one.plan.model.base_url)


def _announce(ctx: AppContext, prepared: Prepared, terminal: Terminal, *, quiet: bool) -> None:
    let_through(ctx, prepared)
    for line in prepared.remarks:
        terminal.say(line)
    for warning in prepared.facts.warnings() if not quiet else ():
        ctx.output.warn("DATASET", prepared.redactor.text(warning["message"]))


def _journal(prepared: Prepared, run: Run) -> Journal:
    return prepared.journal or Journal(run.folder, redactor=prepared.redactor)


def _baselines(prepared: Prepared, run: Run, notes: list[str]) -> dict[str, object]:
    """Each baseline's part of the results document, by its model; a line about each is added to `notes`."""
    found: JsonObject = {}
    for (key, other), one in zip(run.baselines.items(), prepared.baselines, strict=False):  # fewer after Ctrl-C
        if isinstance(other, OsmosisError):
            notes.append(f"baseline {key}: {other.message}")
            found[key] = {"name": one.plan.name, "error": other.message}
            continue
        found[key] = {"name": other.name, "summary": summary_part(other.report, other.plan)}
        try:
            beside = run.compare(other)
        except ValidationError as error:
            notes.append(f"against {other.name}: {error.message}")
            continue
        notes.append(f"against {other.name}: {comparison_line(beside)}")
        found[key]["comparison"] = beside.to_dict()
    return found


def _result(
    ctx: AppContext,
    prepared: Prepared,
    run: Run,
    ending: Ending,
    notes: list[str],
    more: Mapping[str, object],
    *,
    interrupted: bool,
) -> DetailResult | int:
    plan, report, redactor = run.plan, run.report, prepared.redactor
    counted = judged_by(read(file_around(ctx.cwd)), _journal(prepared, run), plan, report)
    notes += counted.met.lines
    code = 130 if interrupted else exit_code(report, ending.fail_under, counted.report)
    primary = counted.report.primary
    if ending.fail_under is not None and code == 1 and primary is not None and primary.pass_rate is not None:
        without = f" ({counted.note})" if counted.note else ""
        notes.append(f"pass rate {primary.pass_rate:.4f} against --fail-under {ending.fail_under:g}{without}")
    if ending.output is not None:
        notes.append(f"results: {ending.output}")
    if ending.quiet and ctx.mode is not Mode.JSON:
        return code
    data = {
        "name": plan.name,
        "journal": str(run.folder),
        "output": str(ending.output) if ending.output else None,
        "warnings": prepared.facts.warnings(),
        "config": config_part(_journal(prepared, run), plan),
        "summary": summary_part(report, plan),
        "quarantine": counted.to_dict(),
        **more,
    }
    shown = [redactor.text(note) for note in notes]
    return DetailResult(
        redactor.data(data),
        exit_code=code,
        next_steps=next_steps(plan, report),
        human=lambda console: draw_report(console, plan, report, notes=shown),
    )


class Terminal:
    """A `local.prepared.Watcher` for people. `close` before anything else is printed there."""

    def __init__(self, output: Output, *, quiet: bool = False, title: str = "rollouts") -> None:
        self._output = output
        self._quiet = quiet
        self._title = title
        self._progress: Progress | None = None
        self._task: Any = None
        self._total = self._done = 0
        self._began = 0.0
        self.kept: list[str] = []
        """What is worth repeating beside the report."""

    def started(self, total: int, done: int) -> None:
        if not self._output.live or self._quiet:
            return
        from rich.progress import (  # a heavy library, and most runs in CI draw nothing
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
            console=self._output.console(stderr=True),
            transient=True,
            refresh_per_second=5,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=total or None, completed=done, figures="", left="")
        self._total, self._done, self._began = total, 0, time.monotonic()

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        if self._progress is None:
            return
        self._progress.advance(self._task)
        self._done += 1
        if running is not None:
            left = time_left(self._total - running.completed, self._done, time.monotonic() - self._began)
            self._progress.update(self._task, figures=figures(running), left=left)

    def say(self, text: str, *, keep: bool = False) -> None:
        if keep:
            self.kept.append(text)
        if not self._quiet:
            self._output.say(text)

    def stage(self, text: str) -> None:
        if not self._quiet:
            self._output.say(text, style="yellow")

    def finished(self, report: Report) -> None:
        self.close()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def time_left(rollouts: int, done: int, seconds: float) -> str:
    """Of so many rollouts, by those that ended in this session. The last seconds alone would say too little: rollouts
    that started together end together."""
    if rollouts <= 0 or not done:
        return ""
    minutes, rest = divmod(round(rollouts * seconds / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} left"


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


def print_aside() -> contextlib.redirect_stdout[Any]:
    """What agents and score functions print goes to stderr: stdout is the result's, which a program may read."""
    return contextlib.redirect_stdout(sys.stderr)


def run_stoppable(go: Callable[[asyncio.Event], Awaitable[T]], say: Callable[[str], None]) -> tuple[T, bool]:
    """Runs `go(stop)` to its end; the result, and whether somebody interrupted. Cut off, it is `KeyboardInterrupt`."""
    interrupted = False

    over = threading.Event()

    async def main() -> T:
        nonlocal interrupted
        stop = asyncio.Event()
        work = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            nonlocal interrupted
            if interrupted and work is not None:
                work.cancel()
                return
            interrupted = True
            say(f"stopping when running rollouts have ended; again (Ctrl-C) cuts them off within {CUT_OFF_S:g} s")
            stop.set()

        with _handled(loop, on_signal, over):
            return await alone(go(stop))

    gc.freeze()  # what is loaded by now stays: the collector need not look at it with every rollout
    try:
        return asyncio.run(main()), interrupted
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except SystemExit as error:
        raise OsmosisError(
            f"code of yours called sys.exit({error.code!r}) in a task of its own, which ended the run",
            hint="finished rollouts are kept: resume the run when that is fixed",
        ) from error
    finally:
        over.set()


@contextmanager
def _handled(loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM call `on_signal` on the loop; after the second the process ends in time whatever happens: code
    that never gives the loop back cannot be cancelled."""
    seen = 0

    def on_any(number: int, frame: object) -> None:
        nonlocal seen
        seen += 1
        with suppress(RuntimeError):  # the loop is closed: all is over
            loop.call_soon_threadsafe(on_signal)
        if seen == 2:
            threading.Thread(target=_end_process, args=(over,), daemon=True).start()

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, on_any)
        except ValueError:
            pass  # not the main thread: whoever runs us there handles signals
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_process(over: threading.Event) -> None:
    if over.wait(CUT_OFF_S):
        return
    with suppress(Exception):  # a closed pipe must not keep the process
        sys.stderr.write("cut off: code that cannot be cancelled still ran; finished rollouts are kept\n")
        sys.stderr.flush()
    os._exit(130)
