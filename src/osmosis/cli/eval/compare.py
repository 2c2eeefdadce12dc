import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.prompts import confirm
from osmosis.cli.core.render import figure_table, print_text
from osmosis.cli.core.results import DetailResult, OperationResult, clean
from osmosis.cli.eval.run_sources import LocalRun, RunFinder, StoredRun, open_run
from osmosis.engine.output.report_files import comparison_markdown, message_text
from osmosis.engine.output.results_json import check_output
from osmosis.errors import UsageError, ValidationError
from osmosis.local.prepared_run import Declined
from osmosis.local.quarantine_file import file_around, read
from osmosis.local.sequential import LOOKS, Deciding
from osmosis.metrics.compare import Comparison, Flip, compare as compare_runs
from osmosis.metrics.figures import comparison_figures
from osmosis.metrics.intervals import ALPHA, LEVEL
from osmosis.records.run.history import Decision


@dataclass(frozen=True)
class CompareFlags:
    a: Annotated[str, Argument(help="The baseline run: its name, or a folder", autocompletion=completion.runs)]
    b: Annotated[str, Argument(help="The run to compare with it", autocompletion=completion.runs)]
    score: Annotated[str | None, Option(help="Score to compare [default: the first one that both runs have]")] = None
    fail_on_regression: Annotated[bool, Option(help="Exit with 1 when B is worse than A.")] = False
    margin: Annotated[
        float,
        Option(help="With --fail-on-regression: exit with 1 unless B is shown to be at most this much worse than A."),
    ] = 0.0
    largest_change: Annotated[float | None, Option(help="The most by which a row's mean score can change.")] = None
    until_decided: Annotated[bool, Option(help="Run more rows, then more attempts, until it is decided.")] = False
    max_rollouts: Annotated[int | None, Option(min=1, help="With --until-decided: at most N more rollouts.")] = None
    max_cost: Annotated[float | None, Option(help="With --until-decided: at most so many more USD in both runs.")] = (
        None
    )
    flips: Annotated[int, Option(min=0, help="Number of flips to show, with both conversations.")] = 5
    md: Annotated[bool, Option(help="Markdown, for a pull request.")] = False
    output: Annotated[Path | None, Option("--output", "-o", help="With --md: the file [default: stdout].")] = None

    def check(self) -> None:
        if self.output is not None and not self.md:
            raise UsageError("-o needs --md", hint="--json prints the comparison as data")
        if not 0 <= self.margin < math.inf:
            raise UsageError(f"--margin must be 0 or greater, got {self.margin}")
        if self.max_cost is not None and not 0 < self.max_cost < math.inf:
            raise UsageError(f"--max-cost must be greater than 0, got {self.max_cost}")
        if self.largest_change is not None and not 0 < self.largest_change < math.inf:
            raise UsageError(f"--largest-change must be greater than 0, got {self.largest_change}")
        if self.largest_change is not None and self.until_decided:
            raise UsageError("--largest-change and --until-decided do not go together", hint="name one of them")
        for flag, value in {"--max-rollouts": self.max_rollouts, "--max-cost": self.max_cost}.items():
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
    runs = RunFinder(ctx)
    first, second = open_run(runs, flags.a), open_run(runs, flags.b)
    quarantine = read(file_around(ctx.cwd)).of([first.dataset, second.dataset])
    if flags.until_decided:
        try:
            decision = until_decided(ctx, first, second, flags, quarantine.active)
        except Declined as declined:
            ctx.output.say(declined.message)
            return 0
    look = decision.last_made if decision is not None else None
    comparison = compare_runs(
        first.outcomes(),
        second.outcomes(),
        threshold=first.pass_threshold,
        score=decision.score
        if decision is not None
        else flags.score or (first.primary if first.primary == second.primary else None),
        bounds={**second.score_bounds, **first.score_bounds},
        level=LEVEL if look is None else 1 - look.level,
        aside=quarantine.active,
        largest_change=flags.largest_change,
        trained=first.trained_rows() | second.trained_rows(),
    )
    talks = [
        _talk(first, second, flip) for flip in sorted(comparison.flips, key=lambda flip: flip.gained)[: flags.flips]
    ]
    met = quarantine.sorted_out(comparison.keys)
    worse = comparison.regressed(flags.margin)
    code = 1 if flags.fail_on_regression and worse else 0
    conclusion = comparison.conclusion(flags.margin)
    if decision is not None:
        conclusion = f"{conclusion} ({ending(decision)})"
    if flags.md:
        text = comparison_markdown(first.name, second.name, comparison, conclusion, talks, met.lines)
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
        **comparison.to_dict(),
        "conclusion": conclusion,
        "regressed": worse,
        "margin": flags.margin,
        "transcripts": talks,
        "notes": met.lines,
        **({"decision": decision.to_dict()} if decision is not None else {}),
    }
    head = f"{first.name} -> {second.name}: {conclusion}"
    return DetailResult(
        data, exit_code=code, human=lambda console: _draw(console, head, comparison, talks, met.lines, worse=worse)
    )


def _talk(a: StoredRun, b: StoredRun, flip: Flip) -> JsonObject:
    transcripts = {"transcript_a": a.read(flip.key_a).messages, "transcript_b": b.read(flip.key_b).messages}
    return {**flip.to_dict(), **transcripts}


def _draw(
    console: Console, head: str, comparison: Comparison, talks: list[JsonObject], notes: list[str], *, worse: bool
) -> None:
    print_text(console, head, "bold red" if worse else "bold")
    console.print(figure_table(comparison.score, list(comparison_figures(comparison))))
    if comparison.rows_differ:
        print_text(console, "some rows were edited between the runs; interpret the difference with care", "yellow")
    for note in notes:
        print_text(console, note, "yellow")
    for talk in talks:
        change = f"{talk['kind']}, {talk['before']:g} -> {talk['after']:g}"
        flip = f"row {talk['row_index']}/{talk['attempt']}: {change}"
        print_text(console, flip, "green" if talk["kind"] == "gained" else "red")
        for side in ("a", "b"):
            messages = talk[f"transcript_{side}"]
            last = message_text(messages[-1]) if messages else ""
            print_text(console, f"  {side.upper()}: {clean(' '.join(last.split()))[:400]}")


def until_decided(
    ctx: AppContext, a: StoredRun, b: StoredRun, flags: CompareFlags, quarantined_keys: Collection[str]
) -> Decision:
    if not isinstance(a, LocalRun) or not isinstance(b, LocalRun):
        name = b.name if isinstance(a, LocalRun) else a.name
        message = f"--until-decided extends local runs, and {name} is on the platform"
        raise ValidationError(message, hint=f"osmosis eval download {name}, or compare it without --until-decided")
    deciding = Deciding(a.journal, b.journal, quarantined_keys)
    score = flags.score or compare_runs(a.outcomes(), b.outcomes(), threshold=a.pass_threshold).score
    decision = deciding.open(score, flags.max_rollouts, flags.max_cost)
    agreed = False
    while (due := decision.next_look) is not None:
        if due > 0:
            if not agreed:
                _ask(ctx, deciding, decision)
                deciding.keep(decision)
                agreed = True
            deciding.extend(decision, decision.looks[due], ctx.environ, ctx.output.say)
        decision = deciding.look(decision)
        if due > 0 or decision.verdict is not None:
            deciding.keep(decision)
        ctx.output.say(_line(decision, due))
    return decision


def _ask(ctx: AppContext, deciding: Deciding, decision: Decision) -> None:
    rollouts, cost = deciding.left(decision)
    price = "cost unknown" if cost is None else f"about ${cost:,.2f} by what they cost so far"
    last = decision.looks[-1]
    rows = f"{last.limit:,} rows" if last.limit is not None else "the rows they have"
    most = f"at most {rollouts:,} more rollouts ({price}): both runs up to {rows} x {last.attempts}"
    ctx.output.say(f"{most}, {LOOKS} looks at most, {ALPHA:.0%} false verdicts")
    if not confirm(ctx, "Run them until the difference is decided?"):
        raise Declined("cancelled; nothing was run")


def _line(decision: Decision, i: int) -> str:
    look = decision.looks[i]
    p_value = "too few rows to tell" if look.p_value is None else f"p {look.p_value:.2g}"
    ends = "" if look.p_value is None else f", decided below {look.level:.2g}"
    difference = "" if look.difference is None else f"difference {look.difference:+.3f}, "
    return f"look {i + 1} of {len(decision.looks)}, {look.rollouts:,} rollouts each: {difference}{p_value}{ends}"


def ending(decision: Decision) -> str:
    last = decision.last_made or decision.looks[0]
    if decision.verdict is not None:
        return f"decided after {last.rollouts:,} rollouts each: B is {decision.verdict}"
    return f"undecided after {last.rollouts:,} rollouts each: the budget of this test is used up"
