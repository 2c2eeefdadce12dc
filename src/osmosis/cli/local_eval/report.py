"""`osmosis eval report NAME`: a local run's figures, again or as one file (HTML, Markdown, JUnit)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis.cli.context import current
from osmosis.cli.results import Column, DetailResult, ListResult, OperationResult
from osmosis.engine import report_files
from osmosis.engine.journal import Journal
from osmosis.engine.results import check_output, config_part, summary_part
from osmosis.errors import UsageError
from osmosis.local.quarantine_file import file_around, judged_by, read
from osmosis.local.request import run_folder, runs_folder
from osmosis.local.run import regrouped, stored_report, summary_of
from osmosis.metrics.judged import Judged
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report, ScoreReport

from .eval_flags import GroupBy, Reduce
from .plan import parse_reducers
from .show import draw_report, next_steps


def report(
    name: Annotated[str | None, typer.Argument(help="Name of the run, or its folder [default: list all runs]")] = None,
    html: Annotated[bool, typer.Option("--html", help="One HTML file with plots and conversations.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Markdown.")] = False,
    junit: Annotated[bool, typer.Option("--junit", help="JUnit XML, one case per rollout.")] = False,
    reduce: Reduce = None,  # type: ignore[assignment]  # None: not given
    group_by: GroupBy = None,  # type: ignore[assignment]  # None: not given
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", help="Write to this file, - is stdout [default: report.<suffix> in the run's folder]"
        ),
    ] = None,
) -> DetailResult | OperationResult | ListResult | int:
    """Show a local run's report, or write it as one self-contained file.

    Example:

        osmosis eval report nightly --html
        osmosis eval report nightly --group-by level --reduce median
        osmosis eval report nightly --md -o -
    """
    ctx = current()
    kinds = [kind for kind, wanted in (("html", html), ("md", md), ("junit", junit)) if wanted]
    if len(kinds) > 1:
        raise UsageError("--html, --md and --junit cannot be used together")
    if output is not None and not kinds:
        raise UsageError("-o needs --html, --md or --junit", hint="--json prints the figures as data")
    if name is None:
        if kinds:
            raise UsageError(f"--{kinds[0]} needs the name of a run", hint=f"osmosis eval report NAME --{kinds[0]}")
        return _list(ctx)
    journal = Journal(run_folder(name, ctx.cwd))
    plan, found = journal.plan(), stored_report(journal)
    if reduce or group_by:
        plan = plan.model_copy(
            update={
                "reducers": parse_reducers(reduce or plan.reducers, plan.attempts),
                "group_by": list(group_by or plan.group_by),
            }
        )
        base = (journal.run().get("local") or {}).get("base_dir") or ctx.cwd
        found = regrouped(journal, plan, found, Path(base, plan.dataset))
    elif found is None:
        found = summary_of(journal, plan)
    counted = judged_by(read(file_around(ctx.cwd)), journal, plan, found)
    if not kinds:
        return _shown(journal, plan, found, counted)
    if kinds[0] == "junit":
        text = report_files.junit(journal, plan, found, {one.key: one.line for one in counted.met.held})
    else:
        text = (report_files.html if html else report_files.markdown)(journal, plan, found)
    if output == "-":
        ctx.output.stdout.write(text)
        return 0
    suffix = {"html": "html", "md": "md", "junit": "xml"}[kinds[0]]
    path = ctx.path(output) if output else journal.folder / f"report.{suffix}"
    check_output(path)
    path.write_text(text, encoding="utf-8")
    return OperationResult("eval.report", f"wrote {path}", {"path": str(path), "format": kinds[0], "name": plan.name})


def _shown(journal: Journal, plan: EvalPlan, found: Report, counted: Judged) -> DetailResult:
    """The figures of all rows; rows in quarantine, and the first score without them, below."""
    notes = list(counted.met.lines)
    without = counted.report.primary
    if counted.met.held and without is not None:
        notes.append(f"without {'it' if len(counted.met.keys) == 1 else 'them'}: {_first(without)}")
    return DetailResult(
        {
            "name": plan.name,
            "config": config_part(journal, plan),
            "summary": summary_part(found, plan),
            "quarantine": counted.to_dict(),
        },
        human=lambda console: draw_report(console, plan, found, notes=notes),
        next_steps=next_steps(plan, found),
    )


def _first(score: ScoreReport) -> str:
    pairs = (("mean", score.mean), ("pass rate", score.pass_rate))
    return f"{score.name} " + ", ".join(f"{name} {value:.3f}" for name, value in pairs if value is not None)


def _lines(path: Path) -> int:
    """How many rollouts are on disk."""
    if not path.exists():
        return 0
    with path.open("rb") as source:
        return sum(block.count(b"\n") for block in iter(lambda: source.read(1 << 20), b""))


def _list(ctx: Any) -> ListResult:
    rows = []
    for path in sorted(runs_folder(ctx.cwd).glob("*/run.json"), key=lambda p: p.stat().st_mtime, reverse=True):
        journal = Journal(path.parent)
        run = journal.run()
        found = stored_report(journal)
        primary = found.primary if found else None
        selected = run.get("rows")
        rows.append(
            {
                "name": path.parent.name,
                "model": run["plan"]["model"]["name"],
                "completed": found.completed if found else _lines(journal.rollouts_path),
                "total": found.total if found else selected and selected * run["plan"].get("attempts", 1),
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
    return ListResult(rows, columns, empty="no local runs yet: osmosis eval -m module:agent -d data.jsonl ...")
