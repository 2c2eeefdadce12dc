"""`osmosis eval compare A B`: two runs, of this machine or the platform, paired by row and attempt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from osmosis.base.json_types import JsonObject
from osmosis.cli.context import current
from osmosis.cli.drawing import Canvas, Line
from osmosis.cli.figures import figure_table
from osmosis.cli.flags import takes
from osmosis.cli.results import DetailResult, OperationResult, clean
from osmosis.cli.run_finder import RunFinder
from osmosis.engine.report_files import comparison_markdown, message_text
from osmosis.engine.results import check_output
from osmosis.errors import UsageError
from osmosis.local.prepared import Declined
from osmosis.local.quarantine_file import file_around, read
from osmosis.metrics.compare import Comparison, Flip
from osmosis.metrics.compare import compare as compare_runs
from osmosis.metrics.figures import comparison_figures
from osmosis.metrics.significance import LEVEL

from .compared_run import ComparedRun, compared_run
from .until_decided import ending, until_decided


@dataclass(frozen=True)
class CompareFlags:
    """What `osmosis eval compare` is told."""

    a: Annotated[str, typer.Argument(help="The baseline run: its name, or a folder")]
    b: Annotated[str, typer.Argument(help="The run to compare with it")]
    score: Annotated[str | None, typer.Option(help="Score to compare [default: the first one that both runs have]")] = (
        None
    )
    fail_on_regression: Annotated[
        bool, typer.Option("--fail-on-regression", help="Exit with 1 when B is worse than A.")
    ] = False
    margin: Annotated[
        float,
        typer.Option(
            help="With --fail-on-regression: exit with 1 unless B is shown to be at most this much worse than A."
        ),
    ] = 0.0
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided", help="Run more rows, then more attempts, in both runs until the difference is decided."
        ),
    ] = False
    max_rollouts: Annotated[
        int | None, typer.Option(min=1, help="With --until-decided: run at most N more rollouts, both runs together.")
    ] = None
    max_cost: Annotated[
        float | None, typer.Option(help="With --until-decided: spend at most this many more USD, both runs together.")
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --until-decided: spend without asking.")] = False
    flips: Annotated[int, typer.Option(min=0, help="Number of flips to show, with both conversations.")] = 5
    md: Annotated[bool, typer.Option("--md", help="Markdown, for a pull request.")] = False
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="With --md: write it to this file [default: stdout].")
    ] = None

    def check(self) -> None:
        """UsageError for flags that do not go together."""
        if self.output is not None and not self.md:
            raise UsageError("-o needs --md", hint="--json prints the comparison as data")
        if not 0 <= self.margin < math.inf:
            raise UsageError(f"--margin must be 0 or greater, got {self.margin}")
        if self.max_cost is not None and not 0 < self.max_cost < math.inf:
            raise UsageError(f"--max-cost must be greater than 0, got {self.max_cost}")
        alone = {"--max-rollouts": self.max_rollouts, "--max-cost": self.max_cost, "--yes": self.yes or None}
        for flag, value in alone.items():
            if value is not None and not self.until_decided:
                raise UsageError(f"{flag} needs --until-decided", hint="comparing stored runs costs nothing")


@takes(CompareFlags)
def compare(flags: CompareFlags) -> DetailResult | OperationResult | int:
    """Compare two runs row by row: difference with confidence interval, one verdict, and flips.

    Each is a local run, by name or folder, or an evaluation on the platform; `platform:NAME` is always the latter.

    With --until-decided, two local runs are extended until it is clear which is better, or the budget is spent. The
    test is sequential: over all of its looks, the chance of a false verdict is 5 %. After an interruption, the same
    command continues.

    Example:

        osmosis eval compare nightly-1 nightly-2 --fail-on-regression --margin 0.02
        osmosis eval compare main branch --until-decided --max-rollouts 400
        osmosis eval compare main branch --md -o comparison.md
        osmosis eval compare my-local-run platform:add-2 --json
    """
    ctx = current()
    flags.check()
    decision = None
    with RunFinder(ctx) as runs:
        first, second = compared_run(runs, flags.a), compared_run(runs, flags.b)
        quarantine = read(file_around(ctx.cwd)).of([first.dataset, second.dataset])
        if flags.until_decided:
            try:
                decision = until_decided(
                    ctx, first, second, flags.score, flags.max_rollouts, flags.max_cost, quarantine.held, yes=flags.yes
                )
            except Declined as declined:
                ctx.output.say(declined.message)
                return 0
        look = decision.last_made if decision is not None else None
        found = compare_runs(
            first.outcomes(),
            second.outcomes(),
            threshold=first.pass_threshold,
            score=decision.score if decision is not None else flags.score,
            bounds={**second.score_bounds, **first.score_bounds},
            level=LEVEL if look is None else 1 - look.level,
            aside=quarantine.held,
        )
        talks = [
            _talk(first, second, flip) for flip in sorted(found.flips, key=lambda flip: flip.gained)[: flags.flips]
        ]
    met = quarantine.sorted_out(found.keys)
    worse = found.regressed(flags.margin)
    code = 1 if flags.fail_on_regression and worse else 0
    conclusion = found.conclusion(flags.margin)
    if decision is not None:
        conclusion = f"{conclusion} ({ending(decision)})"
    if flags.md:
        text = comparison_markdown(first.name, second.name, found, conclusion, talks, met.lines)
        if flags.output is None or str(flags.output) == "-":
            ctx.output.stdout.write(text)
            return code
        path = ctx.path(flags.output)
        check_output(path)
        path.write_text(text, encoding="utf-8")
        return OperationResult("eval.compare", f"wrote {path}", {"path": str(path)}, exit_code=code)
    data = {
        "a": flags.a,
        "b": flags.b,
        **found.to_dict(),
        "conclusion": conclusion,
        "regressed": worse,
        "margin": flags.margin,
        "transcripts": talks,
        "notes": met.lines,
        **({"decision": decision.to_dict()} if decision is not None else {}),
    }
    head = f"{first.name} -> {second.name}: {conclusion}"
    return DetailResult(
        data, exit_code=code, human=lambda console: _draw(console, head, found, talks, met.lines, worse=worse)
    )


def _talk(a: ComparedRun, b: ComparedRun, flip: Flip) -> JsonObject:
    """A flip with both conversations. Lost ones come first: they are what a reader looks for."""
    said = {"transcript_a": a.messages(flip.key_a), "transcript_b": b.messages(flip.key_b)}
    return {**flip.to_dict(), **said}


def _draw(
    console: Canvas, head: str, found: Comparison, talks: list[JsonObject], notes: list[str], *, worse: bool
) -> None:
    console.print(Line(head, style="bold red" if worse else "bold"))
    console.print(figure_table(found.score, list(comparison_figures(found))))
    if found.rows_differ:
        console.print(
            Line("some rows were edited between the runs; interpret the difference with care", style="yellow")
        )
    for note in notes:
        console.print(Line(clean(note), style="yellow"))
    for talk in talks:
        change = f"{talk['kind']}, {talk['before']:g} -> {talk['after']:g}"
        flip = f"row {talk['row_index']} attempt {talk['attempt']}: {change}"
        console.print(Line(flip, style="green" if talk["kind"] == "gained" else "red"))
        for side in ("a", "b"):
            messages = talk[f"transcript_{side}"]
            last = message_text(messages[-1]) if messages else ""
            console.print(Line(f"  {side.upper()}: {clean(last)[:400]}"))
