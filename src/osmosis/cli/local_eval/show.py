"""How a local run's report is shown: what it was, its figures, what to type next, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis.cli.drawing import Canvas, Line
from osmosis.cli.figures import draw_report as draw_figures
from osmosis.cli.render import pairs
from osmosis.cli.results import NextStep, clean
from osmosis.metrics.alarms import alarms
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report


def draw_report(console: Canvas, plan: EvalPlan, report: Report, *, notes: Sequence[str] = ()) -> None:
    """The whole report for a person."""
    console.print(Line(clean(plan.name), style="bold"))
    console.print(pairs(dict(plan.facts())))
    console.print()
    draw_figures(console, report, alarms(report, plan.model.name))
    for note in notes:
        console.print(Line(f"  {clean(note)}"))


def next_steps(plan: EvalPlan, report: Report) -> list[NextStep]:
    """What to type after this run."""
    steps = []
    if report.completed < report.total:
        steps.append(_go_on(plan, report))
    if (
        not report.failed
        and report.completed == report.total
        and any(s.failed for s in report.scores)
        and plan.score_fns
    ):
        steps.append(NextStep("regrade failed scores", command=f"osmosis eval regrade {plan.name} --failed-only"))
    elif report.failed or any(s.failed for s in report.scores):
        steps.append(NextStep("retry failed rollouts", command=f"osmosis eval resume {plan.name} --retry-failed"))
    if report.failures and report.failures[0].rows:
        row = report.failures[0].rows[0]
        steps.append(NextStep("see one with its traceback", command=f"osmosis eval show {plan.name} {row}"))
    steps.append(NextStep("open plots and conversations", command=f"osmosis eval report {plan.name} --html"))
    return steps


def _go_on(plan: EvalPlan, report: Report) -> NextStep:
    """The resume of a run that is not whole; one that its budget ended needs what the rest will cost at this rate."""
    spent = report.spent()
    reached = plan.budget.reached(spent.cost_usd, spent.tokens)
    command = f"osmosis eval resume {plan.name}"
    if reached is None or not report.completed:
        return NextStep("go on", command=command)
    so_far = spent.cost_usd if reached == "max_cost" else spent.tokens
    whole = float(f"{so_far * 1.1 * report.total / report.completed:.2g}")
    flag = f"--max-cost {whole:g}" if reached == "max_cost" else f"--max-tokens-total {whole:.0f}"
    return NextStep("continue with a larger budget", command=f"{command} {flag}")


def exit_code(report: Report, fail_under: float | None = None, deciding: Report | None = None) -> int:
    """0, or 1 when the run is not whole, nothing has a result, or the first score's pass rate is below the bar: that of
    the rows that decide. Single rollouts that failed are data, and count as 0 there."""
    if report.stopped or report.completed < report.total:
        return 1
    if report.unscored:
        return 1
    primary = (deciding or report).primary
    if fail_under is not None:
        return 1 if primary is None or primary.pass_rate is None or primary.pass_rate < fail_under else 0
    return 0
