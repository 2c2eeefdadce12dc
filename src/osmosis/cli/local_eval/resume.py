"""`osmosis eval resume` and `osmosis eval regrade`: go on with a local run, or score it again without asking the model.

Both read the plan from the run's own `run.json`; flags here change only what does not change a result, or say so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from osmosis.cli.context import AppContext, current
from osmosis.cli.flags import takes
from osmosis.cli.own_environment import continue_inside
from osmosis.cli.results import DetailResult
from osmosis.engine.journal import Journal
from osmosis.engine.results import check_output, summary_part, write_results
from osmosis.errors import UsageError
from osmosis.local.prepare import prepare, regraded
from osmosis.local.request import Request, check_classes, run_folder, stored_request
from osmosis.local.workers import worker_count
from osmosis.sdk.calls import alone

from .eval_flags import ApiKey, Classes, FailUnder, NoReport, OutputFile, RetryFailed, SecretsFile, Workers
from .plan import check_limits, parse_concurrency
from .run_config import surround
from .show import draw_report, exit_code, next_steps
from .terminal import Ending, print_aside, run_local


@dataclass(frozen=True)
class ResumeFlags:
    """What `osmosis eval resume` is told."""

    name: Annotated[str, typer.Argument(help="Name of the run, or its folder.")]
    classes: Classes = field(default_factory=list)
    retry_failed: RetryFailed = False
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size", "--concurrency", help="Maximum number of concurrent rollouts, or auto.", metavar="N|auto"
        ),
    ] = None
    workers: Workers = "1"
    max_cost: Annotated[float | None, typer.Option(help="New limit in USD, including what was already spent.")] = None
    max_tokens_total: Annotated[int | None, typer.Option(help="New limit in tokens, including those already used.")] = (
        None
    )
    run_timeout: Annotated[float | None, typer.Option(help="Time limit of this session, in seconds.")] = None
    api_key: ApiKey = None
    secrets_file: SecretsFile = None
    output: OutputFile = None
    fail_under: FailUnder = None
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Answer yes when changed inputs need a rerun or regrade.")
    ] = False
    quiet: NoReport = False


@takes(ResumeFlags)
def resume(flags: ResumeFlags) -> DetailResult | int:
    """Resume a local run: finished rollouts are kept, the rest are run.

    Example:

        osmosis eval resume nightly
        osmosis eval resume nightly --retry-failed timeout rate_limit
    """
    ctx = current()
    if flags.classes and not flags.retry_failed:
        raise UsageError(f"unexpected argument: {flags.classes[0]}", hint="failure categories need --retry-failed")
    check_limits(
        max_cost=flags.max_cost,
        max_tokens_total=flags.max_tokens_total,
        run_timeout=flags.run_timeout,
        fail_under=flags.fail_under,
    )
    check_classes(flags.classes)
    request = stored_run(ctx, flags.name, flags.secrets_file)
    plan = request.plan
    if flags.batch_size is not None:
        plan.concurrency, plan.adaptive = parse_concurrency(flags.batch_size)
    if flags.max_cost is not None:
        plan.budget.max_cost_usd = flags.max_cost
    if flags.max_tokens_total is not None:
        plan.budget.max_total_tokens = flags.max_tokens_total
    plan.timeouts.run_s = flags.run_timeout
    request = replace(
        request,
        api_key=flags.api_key,
        retry_failed=flags.classes if flags.retry_failed else None,
        workers=worker_count(flags.workers),
    )
    output = ctx.path(flags.output) if flags.output else None
    return run_local(ctx, request, Ending(output, flags.fail_under, flags.yes, flags.quiet))


@dataclass(frozen=True)
class RegradeFlags:
    """What `osmosis eval regrade` is told."""

    name: Annotated[str, typer.Argument(help="Name of the run, or its folder.")]
    eval_fn: Annotated[list[str], typer.Option(help="Score function to use instead. Repeatable.")] = field(
        default_factory=list
    )
    rubric: Annotated[list[str], typer.Option(help="Rubric to use instead: file.yaml#id. Repeatable.")] = field(
        default_factory=list
    )
    pass_threshold: Annotated[float | None, typer.Option(help="New pass threshold.")] = None
    failed_only: Annotated[
        bool, typer.Option("--failed-only", help="Score only rollouts that have a failed score.")
    ] = False
    secrets_file: SecretsFile = None
    output: OutputFile = None
    quiet: NoReport = False


@takes(RegradeFlags)
def regrade(flags: RegradeFlags) -> DetailResult | int:
    """Score a run's stored conversations again, without calling the model under test.

    All new scores replace the old ones in one step.

    Example:

        osmosis eval regrade nightly
        osmosis eval regrade nightly --eval-fn rewards:stricter --pass-threshold 0.5
    """
    ctx = current()
    check_limits(pass_threshold=flags.pass_threshold)
    request = stored_run(ctx, flags.name, flags.secrets_file)
    if flags.eval_fn or flags.rubric:
        request.plan.score_fns = [*flags.eval_fn, *(f"rubric:{name}" for name in flags.rubric)]
    if flags.pass_threshold is not None:
        request.plan.pass_threshold = flags.pass_threshold
    output = ctx.path(flags.output) if flags.output else None
    if output is not None:
        check_output(output)
    with print_aside():
        prepared = prepare(replace(request, regrade="failed" if flags.failed_only else "all"))
        run = asyncio.run(alone(prepared.run()))
    journal = Journal(run.folder, redactor=prepared.redactor)
    if output is not None:
        write_results(output, journal, run.plan, run.report)
    code = exit_code(run.report)
    if flags.quiet:
        return code
    count, edited = regraded(prepared)
    note = f"{count} rollouts scored again" + (f", {edited} of them on rows edited since the run" if edited else "")
    data = {
        "name": run.name,
        "journal": str(run.folder),
        "regraded": count,
        "edited": edited,
        "summary": summary_part(run.report, run.plan),
    }
    return DetailResult(
        journal.redactor.data(data),
        exit_code=code,
        next_steps=next_steps(run.plan, run.report),
        human=lambda console: draw_report(console, run.plan, run.report, notes=[note]),
    )


def stored_run(ctx: AppContext, name: str, secrets_file: Path | None) -> Request:
    """The request that the run's `run.json` describes, in the surroundings that its config gave it."""
    folder = run_folder(name, ctx.cwd)
    journal = Journal(folder)
    request = stored_request(folder, journal.plan(), journal.run().get("local"), ctx.environ)
    if request.rollout is not None:
        continue_inside(ctx, request.base_dir, request.rollout)
        surround(ctx, request.env, request.secrets, secrets_file)
        return replace(request, environ=ctx.environ)
    if secrets_file is not None:
        raise UsageError("--secrets-file only applies to the run of a config", hint="export the variables")
    return request
