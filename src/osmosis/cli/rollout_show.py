"""`osmosis eval show RUN [ROW[/ATTEMPT]]`: the rollouts of a run, or one of them, whole, in the terminal.

A run on this machine comes first, then one of the platform. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.base.json_types import JsonObject
from osmosis.datasets.scan import read_rows
from osmosis.engine.journal import Journal
from osmosis.errors import NotFound, OsmosisError, UsageError
from osmosis.records.plan import Selection
from osmosis.records.rollout import Rollout

from .context import AppContext, current
from .draw_rollout import draw_rollout
from .drawing import Canvas, Line
from .results import Column, DetailResult, ListResult, NextStep, Result
from .run_finder import RunFinder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osmosis.client import PlatformClient
    from osmosis.engine.outcome import Outcome
    from osmosis.records.contract.run_bodies import RolloutRow

PAGE = 50


@dataclass(frozen=True)
class MeantRollout:
    """Which rollout a person means."""

    row: int
    attempt: int = 0

    @classmethod
    def parse(cls, text: str) -> MeantRollout:
        """`12` is the first attempt at row 12, `12/2` the third; UsageError for anything else."""
        row, slash, attempt = text.partition("/")
        if not (row.isdecimal() and (attempt.isdecimal() or not slash)):
            raise UsageError(f"{text!r} is not a rollout", hint="ROW or ROW/ATTEMPT, counted from 0: 12/1")
        return cls(int(row), int(attempt or 0))

    def __str__(self) -> str:
        return f"{self.row}/{self.attempt}"


@dataclass(frozen=True)
class ShownRollout:
    """One stored rollout, and the dataset's row where it can still be read."""

    rollout: Rollout
    row: JsonObject | None
    where: str
    """`this machine` or the platform's URL."""


def show(
    run: Annotated[str, typer.Argument(help="Name of a local run or of a platform's.")],
    place: Annotated[
        str | None, typer.Argument(metavar="[ROW[/ATTEMPT]]", help="Which rollout [default: list them, failed first].")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Do not shorten long messages.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of rollouts to list.")] = PAGE,
) -> Result:
    """Show one rollout: the conversation, what was expected, scores with reasons, and the traceback of what failed.

    Example:

        osmosis eval show nightly
        osmosis eval show nightly 12
        osmosis eval show nightly 12/2 --whole
        osmosis eval show platform:multiply-3 12
    """
    ctx = current()
    if place is None:
        return _list(ctx, run, limit)
    found = find_rollout(ctx, run, MeantRollout.parse(place))
    expected = None if found.row is None else _expected(found.row)
    head = f"{run} row {found.rollout.row_index} attempt {found.rollout.attempt}, {found.where}"

    def draw(console: Canvas) -> None:
        console.print(Line(head, style="bold"))
        draw_rollout(console, found.rollout, expected=expected, whole=whole)

    data = {"run": run, "rollout": found.rollout.to_dict(), "row": found.row}
    return DetailResult(data, human=draw, next_steps=_steps(run, found))


def _steps(run: str, found: ShownRollout) -> list[NextStep]:
    again = f"osmosis rollout replay {run} {MeantRollout(*found.rollout.place)}"
    return [NextStep("run it again with the recorded answers", command=again)]


def find_rollout(ctx: AppContext, run: str, place: MeantRollout) -> ShownRollout:
    """The rollout, from this machine or from the platform; NotFound says where was looked and what there is."""

    def here(folder: Path) -> ShownRollout:
        journal = Journal(folder)
        rollout = stored_rollout(folder, place)
        return ShownRollout(rollout, row_of(journal, rollout), "this machine")

    def there(client: PlatformClient, name: str) -> ShownRollout:
        return ShownRollout(client.evals.rollout(name, place.row, place.attempt), None, client.url)

    with RunFinder(ctx) as runs:
        return runs.find(run, of_folder=here, of_platform=there)


def stored_rollout(folder: Path, place: MeantRollout) -> Rollout:
    """One rollout of a local run. NotFound when it is not (yet) there."""
    for line in Journal(folder).lines():
        if (line["row_index"], line["attempt"]) == (place.row, place.attempt):
            return Rollout.model_validate(line)
    raise NotFound(f"run {folder.name} has no rollout {place}", hint=f"osmosis eval show {folder.name}")


def row_of(journal: Journal, rollout: Rollout) -> JsonObject | None:
    """The dataset's row, while the file is where it was and the row is what it was."""
    plan = journal.plan()
    base = (journal.run().get("local") or {}).get("base_dir")
    path = Path(base or ".", plan.dataset).expanduser()
    try:
        row = next(read_rows(path, Selection(rows=[rollout.row_index]), skip_bad=True), None)
    except OsmosisError:
        return None  # gone, or damaged since: the rollout is shown all the same
    same = row is not None and rollout.hashes.get("row") in (None, row.content_hash)
    return row.data if row is not None and same else None


def _expected(row: JsonObject) -> str | None:
    value = row.get("ground_truth", row.get("label"))
    return None if value is None else str(value)


def _list(ctx: AppContext, run: str, limit: int) -> ListResult:
    with RunFinder(ctx) as runs:
        rows = runs.find(
            run,
            of_folder=lambda folder: [_local_row(outcome) for outcome in Journal(folder).outcomes()],
            of_platform=lambda client, name: list(_platform_rows(client, name, limit)),
        )
    rows.sort(key=lambda row: (row["failure"] is None, row["row_index"], row["attempt"]))
    return ListResult(
        rows[:limit],
        _COLUMNS,
        empty=f"run {run} has no rollouts yet",
        total_count=len(rows),
        next_steps=[NextStep("one of them", command=f"osmosis eval show {run} {rows[0]['place']}")] if rows else [],
    )


def _platform_rows(client: PlatformClient, run: str, limit: int) -> Iterator[JsonObject]:
    found: Sequence[RolloutRow] = [
        *client.evals.rollouts(run, limit=min(limit, PAGE), status="failed").rollouts,
        *client.evals.rollouts(run, limit=min(limit, PAGE)).rollouts,
    ]
    seen = set()
    for one in found:
        if one.rollout_id in seen:
            continue
        seen.add(one.rollout_id)
        yield {
            "place": f"{one.row_index}/{one.attempt}",
            "row_index": one.row_index,
            "attempt": one.attempt,
            "status": one.status,
            "score": one.reward,
            "failure": one.failure_category,
            "tokens": one.tokens,
            "duration_ms": one.duration_ms,
        }


def _local_row(outcome: Outcome) -> JsonObject:
    first = next(iter(outcome.scores.values()), None)
    failure = outcome.failure or next((score.failure for score in outcome.scores.values() if score.failure), None)
    return {
        "place": f"{outcome.row_index}/{outcome.attempt}",
        "row_index": outcome.row_index,
        "attempt": outcome.attempt,
        "status": outcome.status.value,
        "score": first.value if first is not None else None,
        "failure": failure.category.value if failure is not None else None,
        "tokens": outcome.usage.prompt_tokens + outcome.usage.completion_tokens,
        "duration_ms": outcome.duration_ms,
    }


_COLUMNS = (
    Column("place", "Row/attempt"),
    Column("status", "Status"),
    Column("score", "Score", "right", show=lambda value: "-" if value is None else f"{value:g}"),
    Column("failure", "Failure"),
    Column("tokens", "Tokens", "right", wide=True),
    Column("duration_ms", "Seconds", "right", show=lambda value: "-" if value is None else f"{value / 1000:.1f}"),
)
