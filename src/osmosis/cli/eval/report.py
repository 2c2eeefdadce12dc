from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

from rich.console import Console
from typer import Option

from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import draw_report as draw_figures, pairs, print_text
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.cli.eval.flags import BY_NAME
from osmosis.cli.eval.plan import parse_reducers
from osmosis.engine.journal import AnnotationFile, Journal
from osmosis.engine.output import report_files
from osmosis.engine.output.results_json import check_output, config_part, summary_part
from osmosis.errors import UsageError
from osmosis.local.quarantine_file import file_around, judged_by, read
from osmosis.local.run import marks_of, regrouped, stored_report, summary_of
from osmosis.local.run_options import run_folder, runs_folder
from osmosis.metrics.figures import Judged
from osmosis.metrics.formats import number, percent
from osmosis.metrics.intervals import missed_bar
from osmosis.metrics.powered_mean import powered_means
from osmosis.metrics.warnings import alarms
from osmosis.records.run.annotations import keep_newest
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report, ScoreReport

Reduce = Annotated[list[str] | None, Option(help=BY_NAME["reduce"].help)]
GroupBy = Annotated[list[str] | None, Option(help=BY_NAME["group_by"].help)]
Html = Annotated[bool, Option(help="Write the report as one HTML file; --md: Markdown; --junit: JUnit XML.")]
Md = Annotated[bool, Option(help="Markdown.", hidden=True)]
Junit = Annotated[bool, Option(help="JUnit XML, one case per rollout.", hidden=True)]
ReportFile = Annotated[
    str | None,
    Option("--output", "-o", help="Write to this file, - is stdout [default: report.<suffix> in the run's folder]"),
]


def report(
    name: str | None,
    html: bool = False,
    md: bool = False,
    junit: bool = False,
    reduce: list[str] | None = None,
    group_by: list[str] | None = None,
    output: str | None = None,
) -> DetailResult | OperationResult | ListResult | int:
    ctx = current()
    kinds = [kind for kind, is_set in (("html", html), ("md", md), ("junit", junit)) if is_set]
    if len(kinds) > 1:
        raise UsageError("--html, --md and --junit cannot be used together")
    if output is not None and not kinds:
        raise UsageError("-o needs --html, --md or --junit", hint="--json prints the figures as data")
    if name is None:
        if kinds:
            raise UsageError(f"--{kinds[0]} needs the name of a run", hint=f"osmosis eval show NAME --{kinds[0]}")
        return list_local_runs(ctx)
    journal = Journal(run_folder(name, ctx.cwd))
    plan, stored = journal.plan(), stored_report(journal)
    if reduce or group_by:
        reducers = parse_reducers(reduce or plan.reducers, plan.attempts)
        plan = plan.model_copy(update={"reducers": reducers, "group_by": list(group_by or plan.group_by)})
        base = (journal.run().get("local") or {}).get("base_dir") or ctx.cwd
        stored = regrouped(journal, plan, stored, Path(base, plan.dataset))
    elif stored is None:
        stored = summary_of(journal, plan)
    counted = judged_by(read(file_around(ctx.cwd)), journal, plan, stored)
    if not kinds:
        return _build_result(journal, plan, stored, counted)
    if kinds[0] == "junit":
        text = report_files.junit(journal, plan, stored, {row.key: row.line for row in counted.met.active})
    else:
        text = (report_files.html if html else report_files.markdown)(journal, plan, stored)
    if output == "-":
        ctx.output.stdout.write(text)
        return 0
    suffix = {"html": "html", "md": "md", "junit": "xml"}[kinds[0]]
    path = ctx.path(output) if output else journal.folder / f"report.{suffix}"
    check_output(path)
    path.write_text(text, encoding="utf-8")
    return OperationResult("eval.report", f"wrote {path}", {"path": str(path), "format": kinds[0], "name": plan.name})


def _build_result(journal: Journal, plan: EvalPlan, report: Report, counted: Judged) -> DetailResult:
    notes = list(counted.met.lines)
    without = counted.report.primary
    if counted.met.active and without is not None:
        them = "it" if len(counted.met.keys) == 1 else "them"
        notes.append(f"without {them}: {without.name} {number(without.mean)}, pass rate {percent(without.pass_rate)}")
    labels = keep_newest(AnnotationFile(journal.folder).read())
    means = powered_means(labels, journal.lines(), plan.score_bounds) if labels else {}
    notes += [mean.line(score) for score, mean in means.items()]
    parts = _mean_parts(journal)
    for score, by_part in parts.items():
        listed = ", ".join(f"{part} {number(value)}" for part, value in by_part.items())
        notes.append(f"parts of {score} on average: {listed}")
    data = {"name": plan.name, "config": config_part(journal, plan), "summary": summary_part(report, plan)}
    data["parts"] = parts
    data["by_people"] = {score: mean.to_dict() for score, mean in means.items()}
    return DetailResult(
        {**data, "quarantine": counted.to_dict()},
        human=lambda console: draw_report(console, plan, report, notes=notes),
        next_steps=next_steps(plan, report),
    )


def _mean_parts(journal: Journal) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, list[float]]] = {}
    for line in journal.lines():
        for name, score in (line.get("scores") or {}).items():
            for part, value in (score.get("parts") or {}).items():
                values.setdefault(name, {}).setdefault(part, []).append(value)
    return {name: {part: fmean(numbers) for part, numbers in parts.items()} for name, parts in values.items()}


def _lines(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as source:
        return sum(block.count(b"\n") for block in iter(lambda: source.read(1 << 20), b""))


def list_local_runs(ctx: AppContext, tag: str | None = None) -> ListResult:
    rows = []
    for path in sorted(runs_folder(ctx.cwd).glob("*/run.json"), key=lambda p: p.stat().st_mtime, reverse=True):
        if tag is not None and tag not in marks_of(path.parent).tags:
            continue
        journal = Journal(path.parent)
        run = journal.run()
        stored = stored_report(journal)
        primary = stored.primary if stored else None
        selected = run.get("rows")
        rows.append(
            {
                "name": path.parent.name,
                "model": run["plan"]["model"]["name"],
                "completed": stored.completed if stored else _lines(journal.rollouts_path),
                "total": stored.total if stored else selected and selected * run["plan"].get("attempts", 1),
                "mean": primary.mean if primary else None,
                "pass_rate": primary.pass_rate if primary else None,
                "created_at": run.get("created_at"),
            }
        )

    columns = [
        *build_columns("name=Name", "model=Model", ">completed=Done", ">total=Of"),
        Column("mean", "Reward", "right", show=number),
        Column("pass_rate", "Pass", "right", show=percent),
        Column("created_at", "Created", show=when, wide=True),
    ]
    empty = f"no local run has the tag {tag}" if tag else "no local runs yet: osmosis eval -m module:agent -d FILE"
    return ListResult(rows, columns, empty=empty)


def draw_report(console: Console, plan: EvalPlan, report: Report, *, notes: Sequence[str] = ()) -> None:
    print_text(console, plan.name, "bold")
    console.print(pairs(dict(plan.facts())))
    console.print()
    draw_figures(console, report, alarms(report, plan.model.name))
    for note in notes:
        print_text(console, f"  {note}")


def next_steps(plan: EvalPlan, report: Report) -> list[NextStep]:
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
    primary = report.primary
    if primary is not None and primary.passed < primary.scored:
        steps.append(NextStep("see what was wrong", command=f"osmosis eval show {plan.name} --outcome wrong"))
    steps.append(NextStep("open it in the browser", command=f"osmosis view {plan.name}"))
    return steps


def _go_on(plan: EvalPlan, report: Report) -> NextStep:
    spent = report.spent()
    reached = plan.budget.reached(spent.cost_usd, spent.tokens)
    command = f"osmosis eval resume {plan.name}"
    if reached is None or not report.completed:
        return NextStep("go on", command=command)
    so_far = spent.cost_usd if reached == "max_cost" else spent.tokens
    total = float(f"{so_far * 1.1 * report.total / report.completed:.2g}")
    flag = f"--max-cost {total:g}" if reached == "max_cost" else f"--max-tokens-total {total:.0f}"
    return NextStep("continue with a larger budget", command=f"{command} {flag}")


def exit_code(report: Report, fail_under: float | None = None, deciding: Report | None = None) -> int:
    if report.stopped or report.completed < report.total or report.unscored:
        return 1
    return 1 if fail_under is not None and missed_fail_under((deciding or report).primary, fail_under) else 0


def missed_fail_under(primary: ScoreReport | None, fail_under: float) -> str | None:
    rate, interval = (primary.pass_rate, primary.pass_rate_interval) if primary else (None, None)
    return missed_bar("pass rate", fail_under, rate, interval)
