"""`osmosis eval compare A B`: two runs, of this machine or the platform, paired by row and attempt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.base.json_types import JsonObject
from osmosis.cli.context import current
from osmosis.cli.figures import figure_table
from osmosis.cli.results import DetailResult, OperationResult, clean
from osmosis.engine.report_files import comparison_markdown, message_text
from osmosis.engine.results import check_output
from osmosis.errors import UsageError
from osmosis.metrics.compare import Comparison, Flip
from osmosis.metrics.compare import compare as compare_runs
from osmosis.metrics.figures import comparison_figures

from .compared_run import ComparedRun, RunFinder

if TYPE_CHECKING:
    from rich.console import Console


def compare(
    a: Annotated[str, typer.Argument(help="The baseline run: its name, or a folder")],
    b: Annotated[str, typer.Argument(help="The run to compare with it")],
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
    md: Annotated[bool, typer.Option("--md", help="Markdown, for a pull request.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="With --md: write it to this file [default: stdout].")
    ] = None,
) -> DetailResult | OperationResult | int:
    """Compare two runs row by row: difference with confidence interval, one verdict, and flips.

    Each is a run of this machine, by name or folder, or an evaluation on the platform; `platform:NAME` is always that.

    Example:

        osmosis eval compare nightly-1 nightly-2 --fail-on-regression --margin 0.02
        osmosis eval compare main branch --md -o comparison.md
        osmosis eval compare add-1 add-2
        osmosis eval compare my-local-run platform:add-2 --json
    """
    ctx = current()
    if output is not None and not md:
        raise UsageError("-o needs --md", hint="--json prints the comparison as data")
    if not 0 <= margin < math.inf:
        raise UsageError(f"--margin must be 0 or greater, got {margin}")
    if flips < 0:
        raise UsageError(f"--flips must not be negative, got {flips}")
    with RunFinder(ctx) as runs:
        first, second = runs.find(a), runs.find(b)
        found = compare_runs(
            first.outcomes(),
            second.outcomes(),
            threshold=first.pass_threshold,
            score=score,
            bounds={**second.score_bounds, **first.score_bounds},
        )
        talks = [_talk(first, second, flip) for flip in sorted(found.flips, key=lambda flip: flip.gained)[:flips]]
    worse = found.regressed(margin)
    code = 1 if fail_on_regression and worse else 0
    if md:
        text = comparison_markdown(first.name, second.name, found, margin, talks)
        if output is None or str(output) == "-":
            ctx.output.stdout.write(text)
            return code
        path = ctx.path(output)
        check_output(path)
        path.write_text(text, encoding="utf-8")
        return OperationResult("eval.compare", f"wrote {path}", {"path": str(path)}, exit_code=code)
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
        exit_code=code,
        human=lambda console: _draw(console, first, second, found, talks, worse=worse, margin=margin),
    )


def _talk(a: ComparedRun, b: ComparedRun, flip: Flip) -> JsonObject:
    """A flip with both conversations. Lost ones come first: they are what a reader looks for."""
    said = {"transcript_a": a.messages(flip.key_a), "transcript_b": b.messages(flip.key_b)}
    return {**flip.to_dict(), **said}


def _draw(
    console: Console,
    a: ComparedRun,
    b: ComparedRun,
    found: Comparison,
    talks: list[JsonObject],
    *,
    worse: bool,
    margin: float,
) -> None:
    from rich.text import Text

    head = f"{a.name} -> {b.name}: {found.conclusion(margin)}"
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
