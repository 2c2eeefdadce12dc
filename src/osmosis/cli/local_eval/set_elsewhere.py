"""`osmosis eval set FILE --on URL`: the same set on a platform, as ordinary runs that share a tag.

Each run is what `osmosis eval run --on` submits: this tree as it is, all rows. Nobody waits here; the platform runs
them as it has room. The same command again submits only what is not there yet. A set's budget is cut into equal parts,
so that all together never spend more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis.base.json_types import JsonObject
from osmosis.cli import prompts
from osmosis.cli.context import AppContext
from osmosis.cli.results import Column, ListResult
from osmosis.cli.submit import submit_config
from osmosis.cli.submit_case import SubmitOptions
from osmosis.cli.submit_overrides import Overrides
from osmosis.errors import NotFound, OsmosisError, UsageError
from osmosis.records.contract.run_bodies import RunRow
from osmosis.records.eval_set import EvalSet, SetRun

COLUMNS = [
    Column("run", "run"),
    Column("name", "name", wide=True),
    Column("status", "status"),
    Column("platform_url", "page", wide=True),
    Column("error", "problem"),
]


@dataclass(frozen=True)
class SetThere:
    """A set on its way to a platform."""

    wanted: EvalSet
    runs: Sequence[tuple[str, SetRun]]
    """The name of each run, and what it is."""
    tag: str
    secrets_file: Path | None = None
    yes: bool = False


def submit_set(ctx: AppContext, url: str, asked: SetThere) -> ListResult:
    """Submits what is not there. A run that is refused is a line of the table; the others are submitted."""
    if asked.wanted.prices:
        raise UsageError("prices of a set count on this machine only", hint="leave prices out with --on")
    there = replace(ctx, options=replace(ctx.options, platform=url))
    if not prompts.confirm(ctx, f"Submit the {len(asked.runs)} runs of this set to {url}?", yes=asked.yes):
        return ListResult([], COLUMNS)
    lines = [_line(there, asked, name, run) for name, run in asked.runs]
    return ListResult(lines, COLUMNS, exit_code=1 if any(line.get("error") for line in lines) else 0)


def _line(ctx: AppContext, asked: SetThere, name: str, run: SetRun) -> JsonObject:
    line: JsonObject = {"run": run.key, "name": name, "tag": asked.tag}
    if (known := _known(ctx, name)) is not None:
        return {**line, "status": known.status, "platform_url": known.platform_url}
    try:
        made = submit_config(ctx, _options(asked, name, run)).resource
    except OsmosisError as error:
        return {**line, "error": error.message}
    return {**line, "status": made.get("status"), "platform_url": made.get("url")}


def _known(ctx: AppContext, name: str) -> RunRow | None:
    """The run of exactly this name; the beginning of a longer one means none here."""
    try:
        with ctx.client() as client:
            found = client.evals.get(name).run
    except NotFound:
        return None
    return found if found.name == name else None


def _options(asked: SetThere, name: str, run: SetRun) -> SubmitOptions:
    wanted = asked.wanted
    changed = Overrides(
        model=run.model,
        n=wanted.n,
        limit=wanted.limit,
        name=name,
        tags=(asked.tag,),
        max_cost=None if wanted.max_cost is None else wanted.max_cost / len(asked.runs),
        params=run.params,
        every_row=True,
    )
    secrets_file = str(asked.secrets_file) if asked.secrets_file else None
    return SubmitOptions("eval", run.config, yes=True, snapshot=True, secrets_file=secrets_file, overrides=changed)
