"""`osmosis eval bisect GOOD BAD`: the commit between two local runs that turned rows from passing to failing."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.cli.context import current
from osmosis.cli.drawing import Canvas, Line
from osmosis.cli.render import table
from osmosis.cli.results import Column, DetailResult, NextStep, clean
from osmosis.engine.journal import Journal
from osmosis.errors import UsageError, ValidationError
from osmosis.local.at_commit import commit_of
from osmosis.local.bisect import BisectResult, bisect
from osmosis.local.request import run_folder
from osmosis.metrics.compare import compare

from .plan import parse_rows

MOST_ROWS = 20


def eval_bisect(
    good: Annotated[str, typer.Argument(help="A local run in which the rows passed.")],
    bad: Annotated[str, typer.Argument(help="A later local run in which they fail.")],
    rows: Annotated[
        str | None, typer.Option("--rows", help=f"Row indices: 3,7,10-20 [default: lost rows, at most {MOST_ROWS}].")
    ] = None,
    score: Annotated[str | None, typer.Option("--score", help="Score to look at [default: the first in both].")] = None,
) -> DetailResult:
    """Find the commit between two local runs that turned rows from passing to failing.

    Each step runs the later run's plan on those rows with the code of one commit, in a worktree. Finished steps are
    kept and not run again. Both runs must be of committed code.

    Example:

        osmosis eval bisect tuesday friday
        osmosis eval bisect tuesday friday --rows 3,7
    """
    ctx = current()
    first, second = Journal(run_folder(good, ctx.cwd)), Journal(run_folder(bad, ctx.cwd))
    for journal in (first, second):
        commit_of(journal)
    plan = first.plan()
    found = compare(first.outcomes(), second.outcomes(), threshold=plan.pass_threshold, score=score)
    wanted = (
        parse_rows(rows) if rows is not None else _lost([flip.row_index for flip in found.flips if not flip.gained])
    )
    if not wanted:
        raise ValidationError(
            f"no row passed in {good} and fails in {bad}", hint="name rows that got worse: --rows 3,7"
        )
    if len(wanted) != len(set(wanted)):
        raise UsageError("--rows names a row twice")
    ctx.output.say(f"bisecting {len(wanted)} rows: {', '.join(map(str, wanted[:10]))}")
    result = bisect(first, second, wanted, found.score, environ=ctx.environ, say=ctx.output.say)
    steps = [NextStep("what it changed", command=f"git show {commit[:10]}") for commit, _ in result.first_bad[:1]]
    return DetailResult(result.to_dict(), human=lambda console: _draw(console, result), next_steps=steps)


def _lost(rows: list[int]) -> list[int]:
    return sorted(set(rows))[:MOST_ROWS]


def _draw(console: Canvas, found: BisectResult) -> None:
    for commit, subject in found.first_bad:
        one = len(found.first_bad) == 1
        head = "the first bad commit" if one else "one of these, of which those between cannot be scored"
        console.print(Line(clean(f"{head}: {commit[:10]} {subject}"), style="bold"))
    console.print(Line(clean(f"{found.score}: {found.good_mean:.3f} before, {found.bad_mean:.3f} after")))
    shown = [
        {
            "commit": one.commit[:10],
            "subject": one.subject,
            "mean": "cannot be scored" if one.mean is None else f"{one.mean:.3f}",
            "verdict": {True: "bad", False: "good", None: "passed over"}[one.bad],
        }
        for one in found.tried
    ]
    columns = [
        Column("commit", "commit"),
        Column("mean", found.score, "right"),
        Column("verdict", ""),
        Column("subject", ""),
    ]
    console.print(table(columns, shown, width=console.width))
