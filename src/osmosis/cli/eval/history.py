from dataclasses import dataclass, field
from typing import Annotated

from typer import Option

from osmosis.base.jsonable import JsonObject, without_none
from osmosis.base.paths import cache_dir
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import Column, ListResult, build_columns, when
from osmosis.cli.targets import row_named
from osmosis.errors import OsmosisError, UsageError
from osmosis.local.run_options import runs_folder
from osmosis.local.viewing.library import LocalLibrary
from osmosis.metrics.formats import dollars, duration, number
from osmosis.records.run.history import History, find_start, find_unbeaten, merge_histories
from osmosis.viewer.history import HistoryQuery, build_history

COLUMNS = (
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
        with ctx.client() as client:
            return [_placed(client.evals.history(**query), "platform")]
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
    return ListResult(rows, COLUMNS, title=title, empty="no finished evaluation matches", extra=extra)
