import time
from collections.abc import Sequence

from osmosis.cli.core.context import AppContext
from osmosis.cli.core.output import Mode
from osmosis.cli.core.results import ListResult, Result, build_columns
from osmosis.client.runs import Runs
from osmosis.errors import NotFound, OsmosisError
from osmosis.local.run_options import run_folder
from osmosis.records.api.body import LogEntry, LogPage
from osmosis.records.run.status import RunKind

LOG_POLL_S = 0.7
MAX_PAGES_BACK = 5
COLUMNS = build_columns("timestamp=Time", "level=Level", "step=Step", "message=Message")


def show_logs(
    ctx: AppContext, kind: RunKind, name: str, *, limit: int, cursor: str | None, follow: bool, debug: bool = False
) -> Result | None:
    """Return lines of a run's log; with `follow`, print new lines until the run is over.

    `debug` applies to people: `--json` has lines of every level."""
    debug = debug or ctx.mode is not Mode.RICH
    try:
        with ctx.client() as client:
            runs = client.runs(kind)
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
