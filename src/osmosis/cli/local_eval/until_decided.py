"""`osmosis eval compare A B --until-decided`: what it will spend, the question, and a line for each look."""

from __future__ import annotations

from collections.abc import Collection

from osmosis.cli.context import AppContext
from osmosis.cli.prompts import confirm
from osmosis.errors import ValidationError
from osmosis.local.decide import LOOKS, Deciding
from osmosis.local.prepared import Declined
from osmosis.metrics.compare import compare
from osmosis.metrics.sequential import ALPHA
from osmosis.records.decision import Decision

from .compared_run import ComparedRun, LocalRun


def until_decided(
    ctx: AppContext,
    a: ComparedRun,
    b: ComparedRun,
    score: str | None,
    max_rollouts: int | None,
    max_cost: float | None,
    aside: Collection[str],
    *,
    yes: bool,
) -> Decision:
    """Extends both runs until the test is over. Raises Declined when the person does not want to spend that."""
    if not isinstance(a, LocalRun) or not isinstance(b, LocalRun):
        name = b.name if isinstance(a, LocalRun) else a.name
        raise ValidationError(
            f"--until-decided extends local runs, and {name} is on the platform",
            hint=f"osmosis eval download {name}, or compare it without --until-decided",
        )
    journals = a.journal, b.journal
    deciding = Deciding(*journals, aside)
    if score is None:
        score = compare(a.outcomes(), b.outcomes(), threshold=a.pass_threshold).score
    decision = deciding.open(score, max_rollouts, max_cost)
    agreed = False
    while (due := decision.next_look) is not None:
        if due > 0:
            if not agreed:
                _ask(ctx, deciding, decision, yes=yes)
                deciding.keep(decision)
                agreed = True
            deciding.extend(decision, decision.looks[due], ctx.environ, ctx.output.say)
        decision = deciding.look(decision)
        if due > 0 or decision.verdict is not None:
            deciding.keep(decision)
        ctx.output.say(_line(decision, due))
    return decision


def _ask(ctx: AppContext, deciding: Deciding, decision: Decision, *, yes: bool) -> None:
    rollouts, cost = deciding.left(decision)
    price = "cost unknown" if cost is None else f"about ${cost:,.2f} by what they cost so far"
    last = decision.looks[-1]
    rows = f"{last.limit:,} rows" if last.limit is not None else "the rows they have"
    ctx.output.say(
        f"at most {rollouts:,} more rollouts ({price}): both runs up to {rows} x {last.attempts}, "
        f"{LOOKS} looks at most, {ALPHA:.0%} false verdicts"
    )
    if not confirm(ctx, "Run them until the difference is decided?", yes=yes):
        raise Declined("cancelled; nothing was run")


def _line(decision: Decision, i: int) -> str:
    look = decision.looks[i]
    p_value = "too few rows to tell" if look.p_value is None else f"p {look.p_value:.2g}"
    ends = "" if look.p_value is None else f", decided below {look.level:.2g}"
    difference = "" if look.difference is None else f"difference {look.difference:+.3f}, "
    return f"look {i + 1} of {len(decision.looks)}, {look.rollouts:,} rollouts each: {difference}{p_value}{ends}"


def ending(decision: Decision) -> str:
    """How the test ended, in a sentence."""
    last = decision.last_made or decision.looks[0]
    if decision.verdict is not None:
        return f"decided after {last.rollouts:,} rollouts each: B is {decision.verdict}"
    return f"undecided after {last.rollouts:,} rollouts each: the budget of this test is used up"
