"""`osmosis eval compare A B`: two local runs, paired by row, wherever it stands, and attempt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.base.json_types import JsonObject
from osmosis.cli.context import current
from osmosis.cli.figures import figure_table
from osmosis.cli.results import DetailResult, clean
from osmosis.engine.journal import Journal
from osmosis.engine.recorded import conversations
from osmosis.engine.report_files import message_text
from osmosis.errors import UsageError
from osmosis.local.request import run_folder
from osmosis.metrics.compare import Comparison
from osmosis.metrics.compare import compare as compare_runs
from osmosis.metrics.figures import comparison_figures

if TYPE_CHECKING:
    from rich.console import Console


def compare(
    a: Annotated[str, typer.Argument(help="The baseline run.")],
    b: Annotated[str, typer.Argument(help="The run to compare with it.")],
    score: Annotated[
        str | None, typer.Option(help="Score to compare [default: the first one that both runs have]")
    ] = None,
    fail_on_regression: Annotated[
        bool, typer.Option("--fail-on-regression", help="Exit with 1 when B is worse than A.")
    ] = False,
    margin: Annotated[
        float,
        typer.Option(
            help="With --fail-on-regression: exit with 1 unless B is shown to be at most this much worse than A."
        ),
    ] = 0.0,
    flips: Annotated[int, typer.Option(help="Number of flips to show, with both conversations.")] = 5,
) -> DetailResult:
    """Compare two local runs row by row: difference with confidence interval, one verdict, and flips.

    Example:

        osmosis eval compare nightly-1 nightly-2 --fail-on-regression --margin 0.02
    """
    ctx = current()
    if not 0 <= margin < math.inf:
        raise UsageError(f"--margin must be 0 or greater, got {margin}")
    if flips < 0:
        raise UsageError(f"--flips must not be negative, got {flips}")
    first, second = Journal(run_folder(a, ctx.cwd)), Journal(run_folder(b, ctx.cwd))
    before, after = first.plan(), second.plan()
    found = compare_runs(
        first.outcomes(),
        second.outcomes(),
        threshold=before.pass_threshold,
        score=score,
        bounds={**after.score_bounds, **before.score_bounds},
    )
    worse = found.regressed(margin)
    # Lost ones first: they are what a reader looks for.
    shown = sorted(found.flips, key=lambda flip: flip.gained)[: max(0, flips)]
    said = conversations(first.folder, second.folder, [(flip.key_a, flip.key_b) for flip in shown])
    talks = [
        {**flip.to_dict(), "transcript_a": before, "transcript_b": after}
        for flip, (before, after) in zip(shown, said, strict=True)
    ]
    data = {
        "a": a,
        "b": b,
        **found.to_dict(),
        "conclusion": found.conclusion(margin),
        "regressed": worse,
        "margin": margin,
        "transcripts": talks,
    }
    return DetailResult(
        data,
        exit_code=1 if fail_on_regression and worse else 0,
        human=lambda console: _draw(console, first, second, found, talks, worse=worse, margin=margin),
    )


def _draw(
    console: Console,
    a: Journal,
    b: Journal,
    found: Comparison,
    talks: list[JsonObject],
    *,
    worse: bool,
    margin: float,
) -> None:
    from rich.text import Text

    head = f"{a.folder.name} -> {b.folder.name}: {found.conclusion(margin)}"
    console.print(Text(head, style="bold red" if worse else "bold"))
    console.print(figure_table(found.score, list(comparison_figures(found))))
    if found.rows_differ:
        console.print(
            Text("some rows were edited between the runs; interpret the difference with care", style="yellow")
        )
    for talk in talks:
        change = f"{talk['kind']}, {talk['before']:g} -> {talk['after']:g}"
        head = f"row {talk['row_index']} attempt {talk['attempt']}: {change}"
        console.print(Text(head, style="green" if talk["kind"] == "gained" else "red"))
        for side in ("a", "b"):
            messages = talk[f"transcript_{side}"]
            last = message_text(messages[-1]) if messages else ""
            console.print(Text(f"  {side.upper()}: {clean(last)[:400]}"))
