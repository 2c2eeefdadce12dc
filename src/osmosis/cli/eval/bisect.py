from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from osmosis.cli.core.context import current
from osmosis.cli.core.render import table
from osmosis.cli.core.results import Column, DetailResult, NextStep, build_columns, clean
from osmosis.cli.eval.plan import parse_rows
from osmosis.engine.journal import Journal
from osmosis.errors import UsageError, ValidationError
from osmosis.local.bisect import BisectResult, bisect
from osmosis.local.resume_at_commit import commit_of
from osmosis.local.run_options import run_folder
from osmosis.metrics.compare import compare

MOST_ROWS = 20
_LIKELY = 3
Rows = Annotated[
    str | None,
    typer.Option("--rows", help=f"Of two runs: row indices 3,7,10-20 [default: lost rows, at most {MOST_ROWS}]."),
]
ScoreName = Annotated[
    str | None, typer.Option("--score", help="Of two runs: score to look at [default: the first in both].")
]
MaxRollouts = Annotated[
    int | None,
    typer.Option("--max-rollouts", min=1, help="Of two runs: rollouts of all steps [default: 40 times one step's]."),
]


def eval_bisect(good: str, bad: str, rows: str | None, score: str | None, max_rollouts: int | None) -> DetailResult:
    ctx = current()
    first, second = Journal(run_folder(good, ctx.cwd)), Journal(run_folder(bad, ctx.cwd))
    for journal in (first, second):
        commit_of(journal)
    plan = first.plan()
    comparison = compare(first.rollouts(), second.rollouts(), threshold=plan.pass_threshold, score=score)
    row_indices = (
        parse_rows(rows)
        if rows is not None
        else sorted({flip.row_index for flip in comparison.flips if not flip.gained})[:MOST_ROWS]
    )
    if not row_indices:
        raise ValidationError(
            f"no row passed in {good} and fails in {bad}", hint="name rows that got worse: --rows 3,7"
        )
    if len(row_indices) != len(set(row_indices)):
        raise UsageError("--rows names a row twice")
    ctx.output.say(f"bisecting {len(row_indices)} rows: {', '.join(map(str, row_indices[:10]))}")
    result = bisect(
        first, second, row_indices, comparison.score, environ=ctx.environ, say=ctx.output.say, max_rollouts=max_rollouts
    )
    steps = [NextStep("what it changed", command=f"git show {commit[:10]}") for commit, _ in result.first_bad[:1]]
    return DetailResult(result.to_dict(), human=lambda console: _draw(console, result), next_steps=steps)


def _percent(chance: float) -> str:
    return f"{chance:.1%}" if chance < 0.9995 else "above 99.9%"


def _draw(console: Console, result: BisectResult) -> None:
    for commit, subject in result.first_bad:
        is_single = len(result.first_bad) == 1
        head = "the first bad commit" if is_single else "one of these, of which those between cannot be scored"
        console.print(Text(clean(f"{head}: {commit[:10]} {subject}"), style="bold"))
    if not result.first_bad:
        console.print(
            Text(f"no commit is certain after {result.rollouts:,} rollouts; more: --max-rollouts", style="bold")
        )
    for commit, subject, chance in result.chances[:_LIKELY]:
        console.print(Text(clean(f"P({commit[:10]}) = {_percent(chance)}  {subject}")))
    console.print(Text(clean(f"{result.score}: {result.good_mean:.3f} before, {result.bad_mean:.3f} after")))
    table_rows = [
        {
            "commit": trial.commit[:10],
            "subject": trial.subject,
            "mean": "cannot be scored" if trial.mean is None else f"{trial.mean:.3f}",
            "verdict": {True: "bad", False: "good", None: "passed over"}[trial.bad],
        }
        for trial in result.tried
    ]
    columns = [
        Column("commit", "commit"),
        Column("mean", result.score, "right"),
        *build_columns("verdict=", "subject="),
    ]
    console.print(table(columns, table_rows, width=console.width))
