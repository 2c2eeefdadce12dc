from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import ValidationError as PydanticError
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject, without_none
from osmosis.base.paths import cache_dir
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.cli.eval.run_sources import row_named
from osmosis.errors import NotFound, OsmosisError, UsageError
from osmosis.local.quarantine_file import add_entry, check_row, file_around, read, remove_entries
from osmosis.local.run_options import runs_folder
from osmosis.local.viewing.library import LocalLibrary
from osmosis.metrics.formats import dollars, duration, number
from osmosis.records.base import utc_now
from osmosis.records.run.history import History, find_start, find_unbeaten, merge_histories
from osmosis.records.run.rows import NAME, QuarantinedRow
from osmosis.viewer.history import HistoryQuery, build_history

_HISTORY_COLUMNS = (
    Column("name", "Run"),
    Column("place", "Where", wide=True),
    *build_columns("state=Row", ">passes=Passed"),
    Column("value", "Figure", justify="right", show=number),
    Column("between", "95 %", justify="right", wide=True),
    Column("trade.cost_usd", "Cost each", justify="right", show=dollars, wide=True),
    Column("trade.latency_ms", "Time each", justify="right", show=duration, wide=True),
    Column("unbeaten", "Unbeaten", show=lambda v: "yes" if v else ""),
    Column("short_commit", "Commit"),
    Column("model", "Model", wide=True),
    Column("created_at", "Made", show=when),
)

_KEYS = ("rollout", "model", "dataset", "tag")


@dataclass(frozen=True)
class HistoryFlags:
    row: Annotated[str | None, Option(help="Row: id or key, or RUN:INDEX, its place in a run", metavar="ROW")] = None
    metric: Annotated[str | None, Option(help="Figure: score:mean, score:pass_rate, cost, ... [the first]")] = None
    only: Annotated[
        list[str], Option(metavar="KEY=VALUE", help="Only runs of a rollout, model, dataset or tag. Repeatable")
    ] = field(default_factory=list)
    rollout: Annotated[str | None, Option(help="--only rollout=...", hidden=True)] = None
    model: Annotated[str | None, Option(help="--only model=...", hidden=True)] = None
    dataset: Annotated[str | None, Option(help="--only dataset=...", hidden=True)] = None
    tag: Annotated[str | None, Option(help="--only tag=...", hidden=True)] = None
    baseline: Annotated[str | None, Option(help="Run to compare with [default: the one tagged baseline]")] = None
    here: Annotated[bool, Option(help="Only local runs")] = False


@takes(HistoryFlags)
def show(flags: HistoryFlags) -> ListResult:
    """Show one row, or one figure, across runs: passed, failed or flaky, and since which commit.

    Covers local runs and those on the platform, newest last. In the browser: osmosis view, then History.

    Example:
        osmosis eval history
        osmosis eval history --metric exact:pass_rate --only model=openai/gpt-5-mini
        osmosis eval history --row nightly:7
        osmosis eval history --row question-17 --here --json
    """
    ctx = current()
    names = ("metric", "rollout", "model", "dataset", "tag", "baseline")
    query = without_none({name: getattr(flags, name) for name in names})
    for text in flags.only:
        key, equals, value = text.partition("=")
        if key not in _KEYS or not equals:
            raise UsageError(f"--only {text!r} is not KEY=VALUE", hint=f"a key is one of {', '.join(_KEYS)}")
        query[key] = value
    if flags.row is not None:
        query["row"] = row_named(flags.row, ctx.cwd).key
    folders = [folder] if (folder := runs_folder(ctx.cwd)).is_dir() else []
    local = build_history(LocalLibrary(folders, cache_dir(ctx.environ)), HistoryQuery(**query), patience_s=None)
    histories = [_placed(local, "here")]
    if not flags.here:
        histories += _elsewhere(ctx, query)
    return _render_history(merge_histories(histories))


def _elsewhere(ctx: AppContext, query: dict[str, str]) -> list[History]:
    try:
        return [_placed(ctx.client().evals.history(**query), "platform")]
    except OsmosisError as error:
        ctx.output.warn("ONLY_HERE", f"only local runs: {error.message}")
        return []


def _placed(history: History, place: str) -> History:
    return history.model_copy(update={"runs": [run.model_copy(update={"place": place}) for run in history.runs]})


def _render_history(history: History) -> ListResult:
    rows, unbeaten = [], find_unbeaten({run.id: run.trade for run in history.runs})
    for run in history.runs:
        row = run.to_dict()
        count = run.row
        row["state"] = count.state if count else "-" if history.row else ""
        row["passes"] = f"{count.passed} of {count.attempts}" if count else ""
        row["between"] = "" if run.low is None or run.high is None else f"{number(run.low)} to {number(run.high)}"
        row["unbeaten"] = run.id in unbeaten
        row["short_commit"] = run.commit[:12]
        rows.append(row)
    first = find_start(history.runs) if history.row else None
    extra: JsonObject = {
        "metric": history.metric,
        "metrics": history.metrics,
        "row": history.row,
        "baseline": history.baseline,
        "since": None,
        "quarantine": [row_entry.to_dict() | {"expired": row_entry.expired()} for row_entry in history.quarantine],
    }
    title = history.metric
    if first is not None and first.row is not None:
        at = f", commit {first.commit[:12]}" if first.commit else ""
        title = f"{first.row.state} since {first.name}{at}"
        extra["since"] = {"run": first.name, "commit": first.commit, "state": first.row.state}
    if history.row:
        title = "; ".join((title, *(row_entry.line for row_entry in history.quarantine)))
    return ListResult(rows, _HISTORY_COLUMNS, title=title, empty="no finished evaluation matches", extra=extra)


DAYS = 14
DATA_SUFFIXES = (".jsonl", ".csv", ".parquet")
_HELD_COLUMNS = build_columns("key=Row", "dataset=Dataset", "until=Until", "state=Counts", "reason=Reason")


def quarantine(
    row: Annotated[
        str | None,
        Argument(
            metavar="[ROW]",
            help="Its id or key, or RUN:INDEX, its place in a local run [default: list all]",
            autocompletion=completion.quarantined,
        ),
    ] = None,
    reason: Annotated[str | None, Option(help="Why the row does not count, for whoever reads this in a month")] = None,
    until: Annotated[str | None, Option(metavar="DATE", help=f"UTC day YYYY-MM-DD [default: in {DAYS} days]")] = None,
    dataset: Annotated[str | None, Option(help="Only of this dataset [default: that of RUN:INDEX, or any]")] = None,
    delete: Annotated[bool, Option(help="Take the row out: it counts again")] = False,
) -> OperationResult | ListResult:
    """List rows known to be flaky, or put one in quarantine: shown like the others, not counted until a given day.

    They are in quarantine.toml, at the top of the workspace: commit it. eval compare, eval run SET, --fail-under, the
    pytest plugin and the pages of osmosis view do without these rows, and say so; after its last day a row counts.

    Example:
        osmosis eval quarantine
        osmosis eval quarantine nightly:7 --reason "two right answers, see issue 12"
        osmosis eval quarantine question-17 --reason "the judge wavers" --until 2027-01-31 --dataset multiply
        osmosis eval quarantine question-17 --delete
    """
    ctx = current()
    path = file_around(ctx.cwd)
    if row is None:
        if reason or until or dataset or delete:
            raise UsageError("name the row", hint='osmosis eval quarantine ROW --reason "..."')
        entries = [_describe_entry(entry) for entry in sorted(read(path).row, key=lambda each: (each.until, each.key))]
        return ListResult(entries, _HELD_COLUMNS, title=str(path), empty="no row is in quarantine")
    row_name = row_named(row, ctx.cwd)
    if delete:
        removed = [_describe_entry(entry) for entry in remove_entries(path, row_name.key)]
        if not removed:
            raise NotFound(f"row {row_name.key} is not in quarantine", hint="osmosis eval quarantine")
        return OperationResult("eval.quarantine.remove", f"row {row_name.key} counts again", {"rows": removed})
    if reason is None:
        raise UsageError("missing option --reason", hint=f'osmosis eval quarantine {row} --reason "..."')
    named = Path(dataset).stem if dataset and Path(dataset).suffix in DATA_SUFFIXES else dataset
    values = {"key": row_name.key, "reason": reason, "until": _day(until), "dataset": named or row_name.dataset}
    try:
        entry = QuarantinedRow.model_validate(values)
    except PydanticError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}") from error
    check_row(ctx.cwd, entry.key, entry.dataset)
    add_entry(path, entry)
    steps = [NextStep("for everyone", command=f"git add {NAME} && git commit -m 'quarantine {entry.key}'")]
    return OperationResult("eval.quarantine.add", entry.line, _describe_entry(entry), next_steps=steps)


def _day(text: str | None) -> date:
    today = utc_now().date()
    if text is None:
        return today + timedelta(days=DAYS)
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--until {text!r} is not a date", hint=f"--until {today + timedelta(days=DAYS)}") from None
    if day < today:
        raise UsageError(f"--until {day} is over: the row would count", hint=f"--until {today + timedelta(days=DAYS)}")
    return day


def _describe_entry(entry: QuarantinedRow) -> dict[str, object]:
    return {**entry.to_dict(), "state": "yes, its time is over" if entry.expired() else "no"}
