import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from osmosis.cli.core.context import AppContext
from osmosis.cli.core.output import Mode
from osmosis.cli.core.render import draw_list, draw_run, print_text
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, Result, build_columns, when
from osmosis.client import PlatformClient
from osmosis.client.runs import Runs
from osmosis.errors import NetworkError, NotFound, OsmosisError, PlatformError
from osmosis.local.run_options import run_folder
from osmosis.metrics.figures import Judged, judged, spent_line
from osmosis.metrics.formats import percent
from osmosis.metrics.intervals import missed_bar
from osmosis.records.api.body import LogEntry, LogPage
from osmosis.records.api.runs import BenchmarkRunDetail, NamedRef, RunDetail
from osmosis.records.run.status import NOUNS, RunKind, ended_by_limit

AGENT_COLUMNS = (
    Column("rank", "Rank"),
    Column("harness", "Harness", show=lambda line: line[:30] if line else "main.py"),
    *build_columns("model=Model", "status=Status"),
    Column("pass_at_1.value", "Pass", justify="right", show=percent),
    Column("pass_at_1.low", "From", justify="right", show=percent),
    Column("pass_at_1.high", "To", justify="right", show=percent),
    Column("run_name", "Evaluation", wide=True),
)
CANDIDATE_COLUMNS = build_columns(
    "name=Candidate", "parent=Parent", "validation=Validation", "is_pareto=Pareto set", "step=Step of its rollouts"
)
POLL_S = 0.7
MAX_POLL_S = 5.0  # Longest interval between polls, in seconds; it grows by 1 s per minute waited
UNREACHABLE_S = 120.0  # Time a platform may be unreachable before waiting ends, in seconds
LOG_POLL_S = 0.7
MAX_PAGES_BACK = 5
COLUMNS = build_columns("timestamp=Time", "level=Level", "step=Step", "message=Message")


def watch(ctx: AppContext, runs: Runs, name: str, *, news: str = "", timeout_s: float | None = None) -> RunDetail:
    """Wait for the end of a run and return its final state; raise PlatformError after a timeout."""
    started = time.monotonic()
    try:
        if news:
            ctx.output.say(news)
        with _progress_of(ctx, name) as show:
            while True:
                detail = _get_patiently(ctx, runs, name)
                show(detail)
                if detail.run.over:
                    return detail
                if timeout_s is not None and time.monotonic() - started > timeout_s:
                    again = f"osmosis {NOUNS[detail.kind]} wait {detail.run.name}"
                    message = f"run {detail.run.name} is still {detail.run.status} after {timeout_s:g} s"
                    raise PlatformError(message, hint=again)
                time.sleep(min(POLL_S + (time.monotonic() - started) / 60, MAX_POLL_S))
    except KeyboardInterrupt:
        noun = NOUNS[runs.whole.kind]
        platform_flag = f" --platform {ctx.options.platform}" if ctx.options.platform else ""
        again = f"the run continues; follow it again with: osmosis {noun} wait {name}{platform_flag}"
        ctx.output.warn("INTERRUPTED", f"{again}\nstop it with: osmosis {noun} stop {name}{platform_flag}")
        raise


def _get_patiently(ctx: AppContext, runs: Runs, name: str) -> RunDetail:
    deadline = time.monotonic() + UNREACHABLE_S
    while True:
        try:
            return runs.get(name)
        except NetworkError as error:
            if time.monotonic() > deadline:
                raise
            ctx.output.warn("NETWORK", f"{error.message}; retrying")
            time.sleep(POLL_S * 2)


def _stage(detail: RunDetail) -> tuple[str, int, int]:
    progress = detail.run.progress
    if progress is None:
        return "", 0, 0
    return detail.stage, progress.completed or 0, progress.total or 0


@contextmanager
def _progress_of(ctx: AppContext, name: str) -> Iterator[Callable[[RunDetail], None]]:
    if not ctx.output.live:
        last: tuple[str, str, int] | None = None

        def show_line(detail: RunDetail) -> None:
            nonlocal last
            stage, completed, total = _stage(detail)
            state = (detail.run.status, stage, completed * 10 // total if total else 0)
            if state != last:
                last = state
                count = f" {completed}/{total}" if total else ""
                ctx.output.say(f"{name}: {detail.run.status}" + (f", {stage}{count}" if stage else ""))

        yield show_line
        return
    columns = (
        SpinnerColumn(),
        TextColumn(name, markup=False),
        TextColumn("{task.description:<11}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn("{task.completed}/{task.total}", markup=False),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ctx.output.console(stderr=True), transient=True) as bars:
        task = bars.add_task("pending", total=None, figures="")

        def show_bar(detail: RunDetail) -> None:
            stage, completed, total = _stage(detail)
            figures, report = "", detail.report
            if report is not None and report.primary and report.primary.pass_rate is not None:
                completed, total = report.completed, report.total
                figures = f"pass rate {report.primary.pass_rate * 100:.0f} %"
            description = stage or detail.run.status
            bars.update(task, description=description, completed=completed, total=total or None, figures=figures)

        yield show_bar


def draw_detail(detail: RunDetail) -> Callable[[Console], None]:
    config = detail.config or {}
    commit = (detail.commit_sha or "")[:12]
    stage, completed, total = _stage(detail)
    head = {
        "name": detail.run.name,
        "status": f"{detail.run.status} ({stage} {completed}/{total})" if stage else detail.run.status,
        "rollout": (detail.rollout or NamedRef()).name or config.get("rollout"),
        "model": config.get("model_path"),
        "dataset": (detail.dataset or NamedRef()).name,
        "code": f"{commit} ({detail.branch})" if commit and detail.branch else commit or None,
        "created": when(detail.run.created_at),
        "page": detail.run.platform_url,
    }

    def draw(console: Console) -> None:
        draw_run(console, head, detail.report, detail.failure)
        if search := detail.optimization:
            draw_list(console, ListResult([candidate.to_dict() for candidate in search.candidates], CANDIDATE_COLUMNS))
            for text in (spent_line(search), search.stopped, search.conclusion, search.diff):
                print_text(console, text)
        if isinstance(detail, BenchmarkRunDetail):
            draw_list(console, ListResult(detail.agents, AGENT_COLUMNS))

    return draw


def run_ref(detail: RunDetail) -> dict[str, object]:
    return {"id": detail.run.id, "name": detail.run.name, "url": detail.run.platform_url}


def judge_run(client: PlatformClient, detail: RunDetail) -> Judged | None:
    if detail.report is None or detail.quarantine is None or not detail.quarantine.row:
        return None
    dataset = (detail.dataset or NamedRef()).name or ""
    return judged(lambda: client.evals.outcomes(detail.run.name), detail.report, detail.quarantine, dataset=dataset)


def model_steps(detail: RunDetail) -> list[NextStep]:
    if ((detail.config or {}).get("advanced") or {}).get("engine", "local") != "local":
        return []
    name = detail.run.name
    evaluate = f"osmosis eval submit --model osmosis/{name} --held-out-of {name}"
    return [
        NextStep("evaluate its best checkpoint on rows that it did not train on", command=evaluate),
        NextStep("serve it", command=f"osmosis model deploy {name}"),
        NextStep("take it with you", command=f"osmosis model download {name}"),
    ]


def finished_result(
    operation: str,
    detail: RunDetail,
    *,
    fail_under: float | None = None,
    judged: Judged | None = None,
    resource: Mapping[str, object] | None = None,
) -> OperationResult:
    """Return the result of a finished run: exit code 1 when it failed, has no scores, or is clearly below `fail_under`.

    Rows in quarantine do not count for `fail_under`."""
    run, report, summary = detail.run, detail.report, detail.to_summary()
    head = f"run {run.name} is {run.status}"
    if detail.failure is not None and ended_by_limit(run.status, detail.failure.category):
        head += f": it ended by its own limit, {detail.failure.message}"
    warnings = [judged.note] if judged is not None and judged.note else []
    errors = ["no rollout has a score"] if detail.unscored else []
    deciding = judged.report if judged is not None and judged.met.active else report
    primary = deciding.primary if deciding else None
    rate, interval = (primary.pass_rate, primary.pass_rate_interval) if primary else (None, None)
    if rate is None and deciding is report:
        rate = summary.pass_rate
    missed = None if fail_under is None else missed_bar("pass rate", fail_under, rate, interval)
    if missed:
        errors.append(f"--fail-under: {missed}")
    message = "; ".join([head, *warnings, *errors])
    code = 1 if errors or run.status != "finished" else 0
    body = {
        **(resource or run_ref(detail)),
        "status": run.status,
        "summary": summary.to_dict(),
        "results": detail.figures.to_dict(),
        "report": report.to_dict() if report else None,
        "failure": detail.failure.to_dict() if detail.failure else None,
        **({"quarantine": judged.to_dict()} if judged is not None else {}),
        **({"optimization": detail.optimization.to_dict()} if detail.optimization else {}),
    }

    def draw(console: Console) -> None:
        draw_detail(detail)(console)
        for line in judged.met.lines if judged is not None else ():
            print_text(console, line, "yellow")
        if warnings or errors:
            print_text(console, message, "red" if code else "yellow")

    command = f"osmosis {NOUNS[detail.kind]} logs {run.name}"
    steps = [NextStep("show the log", command=command)] if code and not missed else []
    if detail.failure:
        steps.append(NextStep("retry it", command=f"osmosis {NOUNS[detail.kind]} resume {run.name}"))
    if run.status == "finished" and detail.kind == "training":
        steps += [NextStep("see what it learned", command=f"osmosis train show {run.name}"), *model_steps(detail)]
    if detail.optimization and detail.optimization.verdict == "better":
        steps.append(NextStep("write the new texts", command=f"osmosis optimize apply {run.name}"))
    status = "failed" if code else "success"
    return OperationResult(operation, message, body, status=status, human=draw, exit_code=code, next_steps=steps)


def show_logs(
    ctx: AppContext, kind: RunKind, name: str, *, limit: int, cursor: str | None, follow: bool, debug: bool = False
) -> Result | None:
    """Return lines of a run's log; with `follow`, print new lines until the run is over."""
    debug = debug or ctx.mode is not Mode.RICH
    try:
        runs = ctx.client().runs(kind)
        page = runs.logs(name, limit=limit, cursor=cursor)
        lines = page.logs if debug else _without_debug(runs, name, page, limit)
        if not follow:
            return log_result(ctx, page, lines)
        write_lines(ctx, lines)
        _follow(ctx, runs, name, page.latest_cursor, debug=debug)
        return None
    except OsmosisError as error:
        if kind == "eval":
            _explain_local_run(ctx, name, error)
        raise


def log_result(ctx: AppContext, page: LogPage, lines: Sequence[LogEntry]) -> ListResult:
    extra = {"next_cursor": page.next_cursor}
    items = [line.to_dict() for line in page.logs]
    return ListResult(items, COLUMNS, extra=extra, human=lambda _: write_lines(ctx, lines))


def write_lines(ctx: AppContext, lines: Sequence[LogEntry]) -> None:
    for line in lines:
        clock = (line.timestamp or "")[11:19]
        mark = "" if line.level in (None, "info") else f" {line.level}"
        ctx.output.stream(line.to_dict(), f"{clock} {line.step or '-'}{mark}: {line.message}")


def _without_debug(runs: Runs, name: str, page: LogPage, limit: int) -> list[LogEntry]:
    lines = [line for line in page.logs if line.level != "debug"]
    for _ in range(MAX_PAGES_BACK):
        if len(lines) >= limit or page.next_cursor is None:
            break
        page = runs.logs(name, cursor=page.next_cursor)
        lines = [line for line in page.logs if line.level != "debug"] + lines
    return lines[-limit:]


def _follow(ctx: AppContext, runs: Runs, name: str, cursor: str | None, *, debug: bool) -> None:
    while True:
        over = runs.get(name).run.over
        page = runs.logs(name, cursor=cursor, newer=True)
        write_lines(ctx, [line for line in page.logs if debug or line.level != "debug"])
        cursor = page.latest_cursor or cursor
        if over and not page.logs:
            return
        time.sleep(LOG_POLL_S)


def _explain_local_run(ctx: AppContext, name: str, error: OsmosisError) -> None:
    try:
        local = run_folder(name, ctx.cwd).name
    except OsmosisError:
        return
    hint = f"osmosis eval show {local} lists its rollouts; one of them has its traceback: osmosis eval show {local} ROW"
    raise NotFound(f"{local} is a local run, which has no log", hint=hint) from error
