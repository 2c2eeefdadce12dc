"""`osmosis eval report NAME`: a local run's figures, again or as one file (HTML, Markdown, JUnit)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..context import current
from ..output import Column, DetailResult, ListResult, OperationResult


def report(
    name: Annotated[str | None, typer.Argument(help="Name of the run, or its folder; none lists all runs.")] = None,
    html: Annotated[bool, typer.Option("--html", help="One HTML file with plots and conversations.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Markdown.")] = False,
    junit: Annotated[bool, typer.Option("--junit", help="JUnit XML, one case per rollout.")] = False,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="Where to; default: report.<suffix> in the run's folder, - = stdout."),
    ] = None,
) -> DetailResult | OperationResult | ListResult | int:
    """Show a local run's report, or write it as one self-contained file.

    Example:

        osmosis eval report nightly --html
        osmosis eval report nightly --md -o -
    """
    from ...engine.results import config_part, summary_part
    from ...errors import UsageError
    from .session import open_run
    from .show import draw_report, next_steps

    ctx = current()
    if name is None:
        return _list(ctx)
    kinds = [kind for kind, wanted in (("html", html), ("md", md), ("junit", junit)) if wanted]
    if len(kinds) > 1:
        raise UsageError("--html, --md and --junit exclude each other: keep one")
    journal = open_run(ctx, name)
    plan = journal.plan()
    found = journal.report() or _summary(journal, plan)
    if not kinds:
        data = {"name": plan.name, "config": config_part(journal, plan), "summary": summary_part(found)}
        return DetailResult(
            data, human=lambda console: draw_report(console, plan, found), next_steps=next_steps(plan, found)
        )
    from ...engine import report_text

    writers = {"html": report_text.html, "md": report_text.markdown, "junit": report_text.junit}
    text = writers[kinds[0]](journal, plan, found)
    if output == "-":
        ctx.output.stdout.write(text)
        return 0
    suffix = {"html": "html", "md": "md", "junit": "xml"}[kinds[0]]
    path = ctx.path(output) if output else journal.folder / f"report.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return OperationResult("eval.report", f"wrote {path}", {"path": str(path), "format": kinds[0], "name": plan.name})


def _summary(journal: Any, plan: Any) -> Any:
    """The figures of a run that did not end."""
    from ...engine.metrics import Summary
    from ...engine.outcome import outcome_of_line

    summary = Summary(plan, score_names=plan.score_fns)
    for line in journal.lines():
        summary.add(outcome_of_line(line))
    return summary.report(stopped="not finished")


def _list(ctx: Any) -> ListResult:
    from ...engine.journal import Journal
    from .session import runs_dir

    rows = []
    for path in sorted(runs_dir(ctx).glob("*/run.json"), key=lambda p: p.stat().st_mtime, reverse=True):
        journal = Journal(path.parent)
        run = journal.run()
        found = journal.report()
        primary = found.primary if found else None
        rows.append(
            {
                "name": path.parent.name,
                "model": run["plan"]["model"]["name"],
                "completed": found.completed if found else None,
                "total": found.total if found else None,
                "mean": primary.mean if primary else None,
                "pass_rate": primary.pass_rate if primary else None,
                "created_at": run.get("created_at"),
            }
        )

    def share(value: Any) -> str:
        return "-" if value is None else f"{value:.3f}"

    columns = [
        Column("name", "run"),
        Column("model", "model"),
        Column("completed", "done", "right"),
        Column("total", "of", "right"),
        Column("mean", "mean", "right", show=share),
        Column("pass_rate", "pass rate", "right", show=share),
        Column("created_at", "made", wide=True),
    ]
    return ListResult(rows, columns, empty="no local run here yet: osmosis eval -m module:agent -d data.jsonl ...")
