"""A local run in the terminal. In a pipe, in CI and under `--json` nothing is drawn or asked."""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis import cli
from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import signals_handled
from osmosis.cli.core.context import AppContext, allow_host
from osmosis.cli.core.output import Mode, Output
from osmosis.cli.core.prompts import confirm
from osmosis.cli.core.results import DetailResult
from osmosis.cli.eval.report import draw_report, exit_code, missed_fail_under, next_steps
from osmosis.engine.journal import Journal
from osmosis.engine.output.results_json import check_output, config_part, summary_part, write_results
from osmosis.engine.watchdog import owns_process
from osmosis.errors import OsmosisError, ValidationError
from osmosis.local.prepare import prepare
from osmosis.local.prepared_run import Declined, PreparedRun
from osmosis.local.quarantine_file import file_around, judged_by, read
from osmosis.local.run import Run
from osmosis.local.run_options import RunOptions, Watcher
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from osmosis.sdk.user_code import run_main

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")

CUT_OFF_S = 8.0  # Time a run may take to end after the second signal, in seconds; then its process is ended


@dataclass(frozen=True)
class Ending:
    output: Path | None = None
    fail_under: float | None = None
    quiet: bool = False


def run_local(ctx: AppContext, plan: EvalPlan, options: RunOptions, ending: Ending) -> DetailResult | int:
    if ending.output is not None:
        check_output(ending.output)
        if ending.output.resolve() == options.dataset(plan).resolve():
            raise ValidationError(f"-o {ending.output} would overwrite the dataset", hint="choose another file")
    terminal = Terminal(ctx.output, quiet=ending.quiet)
    options = replace(
        options, watcher=terminal, confirm=partial(confirm, ctx) if ctx.options.yes or ctx.interactive else None
    )
    with print_aside():
        prepared = prepare(plan, options)
        try:
            let_through(ctx, prepared)
            for line in prepared.remarks:
                terminal.say(line)
            # Outside a workspace, no dataset that a person looks at is on its way to a platform.
            of_platform = ctx.mode is Mode.JSON or ctx.in_workspace
            for warning in prepared.facts.warnings(of_platform=of_platform) if not ending.quiet else ():
                ctx.output.warn("DATASET", prepared.redactor.text(warning["message"]))
            prepared.agree()
            run, interrupted = run_stoppable(prepared.run, terminal.say)
        except Declined as declined:
            terminal.say(declined.message)
            return 0
        finally:
            terminal.close()
            prepared.close()
        more: dict[str, object] = {"baselines": _baselines(prepared, run, terminal.kept)} if run.baselines else {}
        if ending.output is not None:
            write_results(ending.output, _journal(prepared, run), run.plan, run.report, **more)
    return _result(ctx, prepared, run, ending, terminal.kept, more, interrupted=interrupted)


def let_through(ctx: AppContext, prepared: PreparedRun) -> None:
    for each in (prepared, *prepared.baselines):
        if ctx.options.offline and each.plan.model.base_url:
            allow_host(each.plan.model.base_url)


def _journal(prepared: PreparedRun, run: Run) -> Journal:
    return prepared.journal or Journal(run.folder, redactor=prepared.redactor)


def _baselines(prepared: PreparedRun, run: Run, notes: list[str]) -> dict[str, object]:
    results: JsonObject = {}
    for (key, other), baseline in zip(run.baselines.items(), prepared.baselines, strict=False):  # fewer after Ctrl-C
        if isinstance(other, OsmosisError):
            notes.append(f"baseline {key}: {other.message}")
            results[key] = {"name": baseline.plan.name, "error": other.message}
            continue
        results[key] = {"name": other.name, "summary": summary_part(other.report, other.plan)}
        try:
            comparison = run.compare(other)
        except ValidationError as error:
            notes.append(f"against {other.name}: {error.message}")
            continue
        notes.append(f"against {other.name}: {comparison}")
        results[key]["comparison"] = comparison.to_dict()
    return results


def _result(
    ctx: AppContext,
    prepared: PreparedRun,
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
    if ending.fail_under is not None and (missed := missed_fail_under(counted.report.primary, ending.fail_under)):
        without = f" ({counted.note})" if counted.note else ""
        notes.append(f"--fail-under: {missed}{without}")
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

    def draw(console: "Console") -> None:
        draw_report(console, plan, report, notes=[redactor.text(note) for note in notes])

    return DetailResult(redactor.data(data), exit_code=code, next_steps=next_steps(plan, report), human=draw)


class Terminal(Watcher):
    """Tells people how a run goes; close it before printing anything else."""

    def __init__(self, output: Output, *, quiet: bool = False, title: str = "rollouts") -> None:
        self._output = output
        self._quiet = quiet
        self._title = title
        self._progress: Progress | None = None
        self._task: Any = None
        self._total = self._done = 0
        self._began = 0.0
        self.kept: list[str] = []

    def started(self, total: int, done: int) -> None:
        if not self._output.live or self._quiet:
            return
        # A heavy library, and most runs in CI draw nothing.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
    if rollouts <= 0 or not done:
        return ""
    minutes, rest = divmod(round(rollouts * seconds / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} left"


def figures(report: Report) -> str:
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


@contextlib.contextmanager
def print_aside() -> Iterator[None]:
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        if not cli.IS_PROCESS:
            sys.stdout = before


def run_stoppable(go: Callable[[asyncio.Event], Awaitable[T]], say: Callable[[str], None]) -> tuple[T, bool]:
    """Return the result of `go(stop)` and whether it was interrupted; raise KeyboardInterrupt when it was cut off."""
    interrupted = False

    over, cut_off = threading.Event(), threading.Event()

    async def main() -> T:
        nonlocal interrupted
        stop = asyncio.Event()
        work = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            nonlocal interrupted
            if interrupted and work is not None:
                cut_off.set()
                work.cancel()
                return
            interrupted = True
            say(f"stopping when running rollouts have ended; again (Ctrl-C) cuts them off within {CUT_OFF_S:g} s")
            stop.set()

        owns_process.set(True)
        with _handled(loop, on_signal, over):
            return await run_main(go(stop))

    gc.freeze()  # what is loaded by now stays: the collector need not look at it with every rollout
    try:
        return asyncio.run(main()), interrupted
    except asyncio.CancelledError:
        if cut_off.is_set():
            raise KeyboardInterrupt from None
        raise _ended_by_code("cancelled the run's tasks") from None
    except RuntimeError as error:
        if "Event loop stopped" not in str(error):
            raise
        raise _ended_by_code("stopped the event loop") from error
    except SystemExit as error:
        raise _ended_by_code(f"called sys.exit({error.code!r}) in a task of its own") from error
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        message = f"the run cannot go on: {error}"
        raise OsmosisError(message, hint="finished rollouts are kept: resume the run") from error
    finally:
        over.set()


def _ended_by_code(act: str) -> OsmosisError:
    hint = "finished rollouts are kept: resume the run when that is fixed"
    return OsmosisError(f"code of yours {act}, which ended the run", hint=hint)


@contextmanager
def _handled(loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """Call `on_signal` on the loop for SIGINT and SIGTERM; end the process some time after the second signal."""
    signals = 0

    def on_any(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1
        with suppress(RuntimeError):  # the loop is closed: all is over
            loop.call_soon_threadsafe(on_signal)
            if signals == 1:
                threading.Thread(target=_end_if_blocked, args=(loop, over), daemon=True).start()
        if signals == 2:
            threading.Thread(target=_end_process, args=(over,), daemon=True).start()

    with signals_handled(on_any, signal.SIGINT, signal.SIGTERM):
        yield


def _end_if_blocked(loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
    while not over.is_set():
        awake = threading.Event()
        with suppress(RuntimeError):  # the loop is closed: all is over
            loop.call_soon_threadsafe(awake.set)
        if not awake.wait(CUT_OFF_S):
            _end_process(over, 0.0)
        over.wait(1.0)


def _end_process(over: threading.Event, after_s: float = CUT_OFF_S) -> None:
    if over.wait(after_s):
        return
    with suppress(Exception):  # a closed pipe must not keep the process
        sys.stderr.write("cut off: code that cannot be cancelled still ran; finished rollouts are kept\n")
        sys.stderr.flush()
    os._exit(130)
