"""`osmosis eval` and `osmosis train` on the platform: one set of commands for both kinds of run.

`run_commands` makes what they share; what only evaluations have stands below it, what only training runs have in
`training`. Each command asks the client, and returns what it said; submitting is in `submit`, following and drawing in
`run_show`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.errors import NotFound, NothingToRetry, OsmosisError, UsageError, ValidationError
from osmosis.local.request import run_folder
from osmosis.records.contract.body import LogEntry, LogPage
from osmosis.records.contract.run_bodies import RetryRun
from osmosis.records.run_kind import NOUNS, RunKind

from . import prompts
from .context import AppContext, current
from .download import DownloadOptions, download_run
from .drawing import Canvas
from .output import Mode
from .paging import Cursor, Everything, Limit, Lines, Offset, Paging, list_result
from .results import Column, DetailResult, ListResult, NextStep, OperationResult, Result, to_json, when
from .run_show import brief, drawn, finished_result, judged_there, watch
from .secrets_file import SecretsFile, read_secrets_file

if TYPE_CHECKING:
    from osmosis.client.runs import Runs

LOG_POLL_S = 0.7
_PAGES_BACK = 5
COLUMNS = {
    "eval": (
        Column("name", "Name"),
        Column("status", "Status"),
        Column("rollout.name", "Rollout"),
        Column("model.name", "Model", wide=True),
        Column("results.score", "Reward", justify="right", show=lambda v: "-" if v is None else f"{v:.3f}"),
        Column("results.pass_rate", "Pass", justify="right", show=lambda v: "-" if v is None else f"{v * 100:.0f} %"),
        Column("tags", "Tags", show=lambda found: ", ".join(found or []), wide=True),
        Column("created_at", "Created", show=when, wide=True),
    ),
    "training": (
        Column("name", "Name"),
        Column("status", "Status"),
        Column("rollout.name", "Rollout"),
        Column("model.model_name", "Model", wide=True),
        Column("current_step", "Step", justify="right"),
        Column("total_steps", "Of", justify="right"),
        Column("reward", "Reward", justify="right", show=lambda v: "-" if v is None else f"{v:.3f}"),
        Column("created_at", "Created", show=when, wide=True),
    ),
}
LOG_COLUMNS = (
    Column("timestamp", "Time"),
    Column("level", "Level"),
    Column("step", "Step"),
    Column("message", "Message"),
)

Name = Annotated[str, typer.Argument(help="Name or id of the run")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Also write it as JSON to this file")]
Tag = Annotated[str | None, typer.Option("--tag", help="Only runs with this tag")]
Debug = Annotated[bool, typer.Option("--debug", help="Also show debug lines")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run is over")]


@dataclass(frozen=True)
class RunCommands:
    """The commands that both kinds of run have."""

    list_runs: Callable[..., ListResult]
    info: Callable[..., DetailResult]
    logs: Callable[..., Result | None]
    stop: Callable[..., OperationResult]
    priority: Callable[..., OperationResult]
    delete: Callable[..., OperationResult]


def run_commands(kind: RunKind, *, one: str, several: str, info_help: str, kept: str, produced: str) -> RunCommands:
    """The commands of a kind; `one` and `several` are what its help calls its runs."""
    noun = NOUNS[kind]

    def list_runs(
        limit: Limit = None, offset: Offset = 0, everything: Everything = False, tag: Tag = None
    ) -> ListResult:
        paging = Paging(limit, everything, offset)
        empty = f"no run has the tag {tag}" if tag else f"no runs yet: osmosis {noun} submit CONFIG"
        return list_result(current(), lambda client: client.runs(kind).tagged(tag), COLUMNS[kind], paging, empty=empty)

    def info(name: Name, output: Output = None) -> DetailResult:
        return run_info(current(), kind, name, output)

    def logs(
        name: Name, limit: Lines = 50, cursor: Cursor = None, follow: Follow = False, debug: Debug = False
    ) -> Result | None:
        ctx = current()
        try:
            return show_logs(ctx, kind, name, limit=limit, cursor=cursor, follow=follow, debug=debug)
        except OsmosisError as error:
            if kind == "eval":
                _check_elsewhere(ctx, name, error)
            raise

    def stop(name: Name, yes: prompts.Yes = False) -> OperationResult:
        return stop_run(current(), kind, name, yes=yes)

    def priority(
        name: Name, value: Annotated[int, typer.Argument(min=-100, max=100, help="The highest starts first")]
    ) -> OperationResult:
        return prioritize_run(current(), kind, name, value)

    def delete(name: Name, yes: prompts.Yes = False) -> OperationResult:
        return delete_run(current(), kind, name, yes=yes)

    def explained(command: Callable[..., object], text: str, *examples: str) -> None:
        lines = "".join(f"\n    osmosis {noun} {example}" for example in examples)
        command.__doc__ = f"{text}\n\nExample:{lines}\n"

    explained(
        list_runs, f"List the {several} of this workspace, newest first.", "list --limit 10", "list --tag nightly"
    )
    explained(info, info_help, "info multiply-1", "info multiply-1 --json")
    explained(logs, f"Show the log of a {one}.", "logs multiply-1 -f")
    explained(stop, f"Stop a pending or running {one}; {kept}.", "stop multiply-1 --yes")
    explained(
        priority,
        f"Set the priority of a {one} in the queue of its workspace.",
        "priority multiply-1 -- -10",
        "priority multiply-1 10",
    )
    explained(delete, f"Delete a {one} that is over, with {produced}.", "delete multiply-1 --yes")
    return RunCommands(list_runs, info, logs, stop, priority, delete)


def _check_elsewhere(ctx: AppContext, name: str, error: OsmosisError) -> None:
    """A run of this machine has no log, and where its failures are is said instead of what the platform answers."""
    try:
        here = run_folder(name, ctx.cwd).name
    except OsmosisError:
        return
    hint = f"osmosis eval show {here} lists its rollouts; one of them has its traceback: osmosis eval show {here} ROW"
    raise NotFound(f"{here} is a local run, which has no log", hint=hint) from error


EVAL = run_commands(
    "eval",
    one="run",
    several="evaluation runs",
    info_help="Show one run: status, figures with confidence intervals, failures by phase and category.",
    kept="finished rollouts are kept",
    produced="everything it produced",
)
TRAIN = run_commands(
    "training",
    one="training run",
    several="training runs",
    info_help="Show one training run: status, figures, a summary of its curves.",
    kept="its checkpoints are kept",
    produced="its curves and checkpoints",
)


# --- of one kind only ---------------------------------------------------------------------------------------------


def wait_eval(
    name: Name,
    fail_under: Annotated[
        float | None, typer.Option("--fail-under", min=0, max=1, help="Exit with 1 when the pass rate is below this")
    ] = None,
) -> OperationResult:
    """Follow a run until it is over. Ctrl-C does not stop the run; the same command follows it again.

    Example:
        osmosis eval wait multiply-1
    """
    return wait_for(current(), "eval", name, fail_under)


def retry(
    name: Name,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", help="Budget of the whole run in USD [default: unchanged]")
    ] = None,
    max_tokens_total: Annotated[
        int | None, typer.Option("--max-tokens-total", min=1, help="The same for tokens")
    ] = None,
    yes: prompts.Yes = False,
    secrets_file: SecretsFile = None,
) -> OperationResult:
    """Retry a run's failed and skipped rollouts and, with a larger budget, those it did not start.

    A run without failures is run again as a whole, after a confirmation.

    Example:
        osmosis eval retry multiply-1 --yes
        osmosis eval retry multiply-1 --max-cost 20
    """
    ctx = current()
    if max_cost is not None and not 0 < max_cost < math.inf:
        raise UsageError(f"--max-cost must be greater than 0, got {max_cost}")
    secrets = read_secrets_file(ctx, secrets_file) if secrets_file else None
    asked = RetryRun(secrets=secrets or None, max_cost=max_cost, max_tokens_total=max_tokens_total)
    with ctx.client() as client:
        seen = client.evals.get(name)
        if not prompts.confirm(ctx, f"Retry the failed and skipped rollouts of {seen.run.name}?", yes=yes):
            body = {**brief(seen), "status": seen.run.status}
            return OperationResult("eval.retry", "Cancelled.", body, status="cancelled")
        try:
            answer = client.evals.retry(seen.run.name, asked)
        except NothingToRetry as nothing:
            if not prompts.confirm(ctx, f"{nothing.message}. Run them again?", yes=yes, default=False):
                body = {**brief(seen), "status": seen.run.status}
                return OperationResult("eval.retry", "Cancelled.", body, status="cancelled")
            answer = client.evals.retry(seen.run.name, asked.model_copy(update={"everything": True}))
    count, shown = answer.retryable_samples, seen.run.name
    what = f"{count} rollouts of {shown} are queued again" if count else f"{shown} restarts from the beginning"
    steps = [NextStep("follow it", command=f"osmosis eval wait {shown}")]
    return OperationResult("eval.retry", what, answer.to_dict(), next_steps=steps)


def download(
    name: Name,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write to [default: .osmosis/evals/NAME]")
    ] = None,
    types: Annotated[
        str, typer.Option("--type", help="metrics, trajectories, artifacts, logs, annotations, tokens, all")
    ] = "metrics,trajectories",
    labels_into: Annotated[
        str | None, typer.Option("--labels-into", metavar="RUN", help="Add its labels to this local run")
    ] = None,
    rows: Annotated[str | None, typer.Option("--rows", help="Only these row indices: 3,7,10-20")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Download existing files again")] = False,
    yes: prompts.Yes = False,
) -> OperationResult:
    """Download the metrics and conversations of a run.

    Example:
        osmosis eval download multiply-1
        osmosis eval download multiply-1 --type all --rows 0-9 -o results
        osmosis eval download nightly --type annotations --labels-into nightly
    """
    return download_run(current(), name, DownloadOptions(output, types, rows, overwrite, yes, labels_into))


# --- what they do -------------------------------------------------------------------------------------------------


def run_info(ctx: AppContext, kind: RunKind, name: str, output: Path | None = None) -> DetailResult:
    """One run with its metrics; written to `output`, too, when that is given."""
    with ctx.client() as client:
        runs = client.runs(kind)
        seen = runs.get(name)
        try:
            metrics: dict[str, object] | None = runs.metrics(name).to_dict()
        except NotFound:
            metrics = None
    data = {**seen.to_dict(), "summary": seen.to_summary().to_dict(), "metrics": metrics}
    steps = []
    if not seen.run.over:
        steps.append(NextStep("follow it", command=f"osmosis {NOUNS[kind]} wait {seen.run.name}"))
    result = DetailResult(data, human=drawn(seen), next_steps=steps)
    if output:
        result.extra = {"output": str(write_json(ctx.path(output), result.envelope()))}
    return result


def write_json(path: Path, body: Mapping[str, object]) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(body) + "\n")
    except OSError as error:
        raise ValidationError(f"cannot write {path}: {error.strerror}", hint="-o FILE") from error
    return path


def wait_for(ctx: AppContext, kind: RunKind, name: str, fail_under: float | None) -> OperationResult:
    """Follow a run to its end; what came of it."""
    with ctx.client() as client:
        seen = watch(ctx, client.runs(kind), name)
        counted = judged_there(client, seen)
    return finished_result(f"{NOUNS[kind]}.wait", seen, fail_under=fail_under, counted=counted)


def stop_run(ctx: AppContext, kind: RunKind, name: str, *, yes: bool) -> OperationResult:
    """Ask the platform to stop a run; one that is over stays as it is."""
    operation = f"{NOUNS[kind]}.stop"
    with ctx.client() as client:
        runs = client.runs(kind)
        seen = runs.get(name)
        shown = seen.run.name
        if seen.run.over:
            body = {**brief(seen), "status": seen.run.status}
            return OperationResult(operation, f"run {shown} is {seen.run.status} already", body)
        if not prompts.confirm(ctx, f"Stop run {shown}?", yes=yes):
            body = {**brief(seen), "status": seen.run.status}
            return OperationResult(operation, "Cancelled.", body, status="cancelled")
        runs.stop(shown)
        seen = runs.get(shown)
    message = f"run {shown} is {seen.run.status if seen.run.over else 'stopping'}"
    return OperationResult(operation, message, {**brief(seen), "status": seen.run.status})


def prioritize_run(ctx: AppContext, kind: RunKind, name: str, priority: int) -> OperationResult:
    """Set the priority of a run that waits."""
    with ctx.client() as client:
        runs = client.runs(kind)
        seen = runs.get(name)
        answer = runs.prioritize(seen.run.name, priority)
    body = {**brief(seen), **answer.to_dict()}
    message = f"run {seen.run.name} has priority {answer.priority}"
    return OperationResult(f"{NOUNS[kind]}.priority", message, body)


def delete_run(ctx: AppContext, kind: RunKind, name: str, *, yes: bool) -> OperationResult:
    """Delete a run that is over."""
    operation = f"{NOUNS[kind]}.delete"
    with ctx.client() as client:
        runs = client.runs(kind)
        seen = runs.get(name)
        body = {**brief(seen), "status": seen.run.status}
        if yes and name not in (seen.run.name, seen.run.id):
            what = f"{name!r} stands for {seen.run.name}, and --yes deletes only a run that is named in full"
            raise UsageError(what, hint=f"osmosis {NOUNS[kind]} delete {seen.run.name} --yes")
        if not prompts.confirm(ctx, f"Delete run {seen.run.name} and everything it produced?", yes=yes):
            return OperationResult(operation, "Cancelled.", body, status="cancelled")
        runs.delete(seen.run.name)
    return OperationResult(operation, f"run {seen.run.name} is deleted", body)


def show_logs(
    ctx: AppContext, kind: RunKind, name: str, *, limit: int, cursor: str | None, follow: bool, debug: bool = False
) -> Result | None:
    """Lines of a run's log; with `follow` they are printed as they come, until the run is over.

    People see lines of level `debug` only with `debug`; a program gets them all.
    """
    debug = debug or ctx.mode is not Mode.RICH
    with ctx.client() as client:
        runs = client.runs(kind)
        page = runs.logs(name, limit=limit, cursor=cursor)
        lines = page.logs if debug else _worth_reading(runs, name, page, limit)
        if not follow:

            def draw(_: Canvas) -> None:
                write_lines(ctx, lines)

            extra = {"next_cursor": page.next_cursor}
            return ListResult([line.to_dict() for line in page.logs], LOG_COLUMNS, extra=extra, human=draw)
        write_lines(ctx, lines)
        _follow(ctx, runs, name, page.latest_cursor, debug=debug)
    return None


def _worth_reading(runs: Runs, name: str, page: LogPage, limit: int) -> list[LogEntry]:
    """The last `limit` lines above `debug`: from further back where this page has too few."""
    found = [line for line in page.logs if line.level != "debug"]
    for _ in range(_PAGES_BACK):
        if len(found) >= limit or page.next_cursor is None:
            break
        page = runs.logs(name, cursor=page.next_cursor)
        found = [line for line in page.logs if line.level != "debug"] + found
    return found[-limit:]


def _follow(ctx: AppContext, runs: Runs, name: str, cursor: str | None, *, debug: bool) -> None:
    """Print lines as they come, until the run is over and everything was said."""
    while True:
        over = runs.get(name).run.over
        page = runs.logs(name, cursor=cursor, newer=True)
        write_lines(ctx, [line for line in page.logs if debug or line.level != "debug"])
        cursor = page.latest_cursor or cursor
        if over and not page.logs:
            return
        time.sleep(LOG_POLL_S)


def write_lines(ctx: AppContext, lines: Sequence[LogEntry]) -> None:
    """Lines of a log, as people read them."""
    for line in lines:
        clock = (line.timestamp or "")[11:19]
        mark = "" if line.level in (None, "info") else f" {line.level}"
        ctx.output.stream(line.to_dict(), f"{clock} {line.step or '-'}{mark}: {line.message}")
