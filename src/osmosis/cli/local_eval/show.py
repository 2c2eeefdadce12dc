"""How a local run's report is shown: facts, one table of figures, failures, what to type next.

Draws figures that the engine computed. Text of users and models is plain text here, never markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...records.plan import EvalPlan
from ...records.report import Interval, Report, ScoreReport
from ..output import Column, NextStep, clean

if TYPE_CHECKING:
    from rich.console import Console


def draw_report(console: Console, plan: EvalPlan, report: Report, *, notes: Sequence[str] = ()) -> None:
    """The whole report for a person."""
    from rich.text import Text

    from ...engine.report_text import facts
    from ..render import pairs, table

    console.print(Text(clean(plan.name), style="bold"))
    console.print(pairs(dict(facts(plan, report))))
    if plan.model.kind == "offline":
        console.print(Text("  the model is a stand-in, not a language model: figures show only that things work"))
    if report.scores:
        console.print(table(score_columns(report), [score_row(s) for s in report.scores], width=console.width))
    if report.failures:
        console.print(Text("failures", style="bold"))
        rows = [
            {
                "where": f"{f.phase.value}/{f.category.value}",
                "count": f.count,
                "rows": ", ".join(map(str, f.rows[:5])) + (" ..." if len(f.rows) > 5 else ""),
                "example": f.example.splitlines()[0][:160] if f.example else "",
            }
            for f in report.failures
        ]
        columns = [Column("where", "failure"), Column("count", "count", "right"), Column("rows", "rows")]
        console.print(table([*columns, Column("example", "for example")], rows, width=console.width))
    if report.coverage < 0.95 and report.total:
        console.print(
            Text(f"  only {report.coverage:.1%} of the rollouts have a score: read the means with care", style="yellow")
        )
    for note in notes:
        console.print(Text(f"  {clean(note)}"))


def score_columns(report: Report) -> list[Column]:
    columns = [
        Column("name", "score"),
        Column("mean", "mean (failures 0)", "right"),
        Column("mean_scored", "mean scored", "right"),
        Column("pass_rate", "pass rate", "right"),
    ]
    ks = report.scores[0].pass_at_k
    columns += [Column(f"at{p.k}", f"pass@{p.k}", "right") for p in ks if p.k > 1]
    columns += [Column(f"hat{p.k}", f"pass^{p.k}", "right") for p in report.scores[0].pass_hat_k if p.k > 1]
    if report.scores[0].flake_rate is not None:
        columns.append(Column("flaky", "flaky rows", "right"))
    return [*columns, Column("scored", "scored", "right"), Column("failed", "failed", "right")]


def score_row(score: ScoreReport) -> dict[str, Any]:
    row = {
        "name": score.name,
        "mean": _with(score.mean, score.mean_interval),
        "mean_scored": _number(score.mean_scored),
        "pass_rate": _with(score.pass_rate, score.pass_rate_interval),
        "flaky": None if score.flake_rate is None else f"{score.flake_rate:.0%}",
        "scored": score.scored,
        "failed": score.failed,
    }
    row.update({f"at{p.k}": _number(p.value) for p in score.pass_at_k})
    row.update({f"hat{p.k}": _number(p.value) for p in score.pass_hat_k})
    return row


def next_steps(plan: EvalPlan, report: Report) -> list[NextStep]:
    """What to type after this run."""
    steps = []
    if report.completed < report.total:
        steps.append(NextStep("go on", command=f"osmosis eval resume {plan.name}"))
    if (
        not report.failed
        and report.completed == report.total
        and any(s.failed for s in report.scores)
        and plan.score_fns
    ):
        steps.append(NextStep("score those again", command=f"osmosis eval regrade {plan.name} --failed-only"))
    elif report.failed or any(s.failed for s in report.scores):
        steps.append(NextStep("run the failed ones again", command=f"osmosis eval resume {plan.name} --retry-failed"))
    steps.append(NextStep("conversations and plots", command=f"osmosis eval report {plan.name} --html"))
    return steps


def exit_code(report: Report, fail_under: float | None = None) -> int:
    """0, or 1 when the run is not whole, nothing has a result, or the first score's mean is below the bar."""
    if report.stopped or report.completed < report.total:
        return 1
    if report.unscored:
        return 1
    primary = report.primary
    if fail_under is not None:
        return 1 if primary is None or primary.mean is None or primary.mean < fail_under else 0
    return 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _with(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]" if interval else f"{value:.3f}"
