"""`osmosis eval history`: a row, or a figure, over the runs of this machine and of the platform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from osmosis.base.json_types import JsonObject
from osmosis.base.paths import cache_dir
from osmosis.errors import OsmosisError
from osmosis.local.request import runs_folder
from osmosis.local.viewing.disk_library import DiskLibrary
from osmosis.metrics.formats import number
from osmosis.records.history import History, merged, since
from osmosis.viewer.over_runs import HistoryWanted, history

from .context import AppContext, current
from .flags import takes
from .results import Column, ListResult, when
from .row_name import row_named

COLUMNS = (
    Column("name", "Run"),
    Column("place", "Where", wide=True),
    Column("state", "Row"),
    Column("passes", "Passed", justify="right"),
    Column("value", "Figure", justify="right", show=number),
    Column("between", "95 %", justify="right", wide=True),
    Column("short_commit", "Commit"),
    Column("model", "Model", wide=True),
    Column("created_at", "Made", show=when),
)


@dataclass(frozen=True)
class HistoryFlags:
    """What `osmosis eval history` is told."""

    row: Annotated[
        str | None,
        typer.Option(help="A row: its id or key, or RUN:INDEX, its place in a local run", metavar="ROW"),
    ] = None
    metric: Annotated[
        str | None, typer.Option(help="A figure: score:mean, score:pass_rate, cost, ... [default: the first]")
    ] = None
    rollout: Annotated[str | None, typer.Option(help="Only runs of this rollout or agent")] = None
    model: Annotated[str | None, typer.Option(help="Only runs with this model")] = None
    dataset: Annotated[str | None, typer.Option(help="Only runs on this dataset")] = None
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag")] = None
    baseline: Annotated[str | None, typer.Option(help="Run to compare with [default: the one tagged baseline]")] = None
    here: Annotated[bool, typer.Option("--here", help="Only local runs")] = False


@takes(HistoryFlags)
def show(flags: HistoryFlags) -> ListResult:
    """Show one row, or one figure, across runs: passed, failed or flaky, and since which commit.

    Covers local runs and those on the platform, newest last. In the browser: osmosis view, then History.

    Example:
        osmosis eval history
        osmosis eval history --metric exact:pass_rate --model openai/gpt-5-mini
        osmosis eval history --row nightly:7
        osmosis eval history --row question-17 --here --json
    """
    ctx = current()
    asked = {
        name: value
        for name in ("metric", "rollout", "model", "dataset", "tag", "baseline")
        if (value := getattr(flags, name)) is not None
    }
    if flags.row is not None:
        asked["row"] = row_named(flags.row, ctx.cwd).key
    folders = [folder] if (folder := runs_folder(ctx.cwd)).is_dir() else []
    local = history(DiskLibrary(folders, cache_dir(ctx.environ)), HistoryWanted(**asked), patience_s=None)
    found = [_placed(local, "here")]
    if not flags.here:
        found += _elsewhere(ctx, asked)
    return _shown(merged(found))


def _elsewhere(ctx: AppContext, asked: dict[str, str]) -> list[History]:
    """The platform's; none, and said so, where it cannot be asked."""
    try:
        with ctx.client() as client:
            return [_placed(client.evals.history(**asked), "platform")]
    except OsmosisError as error:
        ctx.output.warn("ONLY_HERE", f"only local runs: {error.message}")
        return []


def _placed(found: History, place: str) -> History:
    return found.model_copy(update={"runs": [run.model_copy(update={"place": place}) for run in found.runs]})


def _shown(found: History) -> ListResult:
    rows = []
    for run in found.runs:
        row = run.to_dict()
        count = run.row
        row["state"] = count.state if count else "-" if found.row else ""
        row["passes"] = f"{count.passed} of {count.attempts}" if count else ""
        row["between"] = "" if run.low is None or run.high is None else f"{number(run.low)} to {number(run.high)}"
        row["short_commit"] = run.commit[:12]
        rows.append(row)
    first = since(found.runs) if found.row else None
    extra: JsonObject = {
        "metric": found.metric,
        "metrics": found.metrics,
        "row": found.row,
        "baseline": found.baseline,
        "since": None,
        "quarantine": [one.to_dict() | {"expired": one.expired()} for one in found.quarantine],
    }
    title = found.metric
    if first is not None and first.row is not None:
        at = f", commit {first.commit[:12]}" if first.commit else ""
        title = f"{first.row.state} since {first.name}{at}"
        extra["since"] = {"run": first.name, "commit": first.commit, "state": first.row.state}
    if found.row:
        title = "; ".join((title, *(one.line for one in found.quarantine)))
    return ListResult(rows, COLUMNS, title=title, empty="no finished evaluation matches", extra=extra)
