import asyncio
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Option

from osmosis.cli.agents import continue_inside
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, SecretsFile, current
from osmosis.cli.core.render import print_text
from osmosis.cli.core.results import DetailResult, OperationResult
from osmosis.cli.eval import flags as eval_flags
from osmosis.cli.eval.plan import apply_settings, check_finite, name_scorers
from osmosis.cli.eval.progress import Ending, print_aside, run_local
from osmosis.cli.eval.report import draw_report, exit_code, next_steps
from osmosis.cli.eval.run import apply_environment
from osmosis.cli.eval.run_sources import RunFinder
from osmosis.cli.eval.runs import AnyName, retry
from osmosis.engine.journal import Journal
from osmosis.engine.output.results_json import check_output, summary_part, write_results
from osmosis.errors import NotFound, UsageError
from osmosis.local.prepare import prepare, regraded
from osmosis.local.run_options import RunOptions, check_classes, run_folder, stored_options
from osmosis.local.workers import worker_count
from osmosis.records.run import plan as plans
from osmosis.sdk.user_code import run_main


@dataclass(frozen=True)
class ResumeFlags:
    name: AnyName
    classes: eval_flags.Classes = field(default_factory=list)
    retry_failed: eval_flags.RetryFailed = False
    workers: eval_flags.Workers = "1"
    set: eval_flags.Set = field(default_factory=list)
    api_key: eval_flags.ApiKey = None
    secrets_file: SecretsFile = None
    output: eval_flags.OutputFile = None
    fail_under: eval_flags.FailUnder = None
    quiet: eval_flags.NoReport = False
    settings: dict[str, Any] = field(default_factory=dict)


_HELPS = {
    "max_cost": "New limit in USD, including what was already spent.",
    "max_tokens_total": "New limit in tokens, including those already used.",
}


@takes(
    ResumeFlags, eval_flags.plan_parameters("batch_size", "max_cost", "max_tokens_total", "run_timeout", helps=_HELPS)
)
def resume(flags: ResumeFlags) -> DetailResult | OperationResult | int:
    """Resume a run: finished rollouts are kept, the rest are run.

    On the platform, the failed and skipped rollouts of a run are retried and, with a larger budget, those it did not
    start.

    Example:
        osmosis eval resume nightly
        osmosis eval resume nightly --retry-failed timeout rate_limit
        osmosis eval resume platform:multiply-1 --max-cost 20 --yes
    """
    ctx = current()
    try:
        run_folder(flags.name, ctx.cwd)
    except NotFound:
        name = RunFinder(ctx).find(flags.name, of_folder=lambda folder: folder.name, of_platform=lambda _, name: name)
        cost, tokens = flags.settings.get("max_cost"), flags.settings.get("max_tokens_total")
        return retry(name, cost, tokens, secrets_file=flags.secrets_file)
    if flags.classes and not flags.retry_failed:
        raise UsageError(f"unexpected argument: {flags.classes[0]}", hint="failure categories need --retry-failed")
    check_finite("--fail-under", flags.fail_under)
    check_classes(flags.classes)
    plan, options = load_run(ctx, flags.name, flags.secrets_file)
    plan.timeouts.run_s = None
    plan = apply_settings(plan, flags.settings, flags.set)
    again, workers = flags.classes if flags.retry_failed else None, worker_count(flags.workers)
    options = replace(options, api_key=flags.api_key, retry_failed=again, workers=workers)
    output = ctx.path(flags.output) if flags.output else None
    return run_local(ctx, plan, options, Ending(output, flags.fail_under, flags.quiet))


@dataclass(frozen=True)
class RegradeFlags:
    name: Annotated[str, Argument(help="Name of the run, or its folder.", autocompletion=completion.local_runs)]
    eval_fn: Annotated[list[str], Option(help="Use this score function instead. Repeatable.")] = field(
        default_factory=list
    )
    rubric: Annotated[list[str], Option(help="Use this rubric instead: file.yaml#id. Repeatable.")] = field(
        default_factory=list
    )
    failed_only: Annotated[bool, Option(help="Score only rollouts that have a failed score.")] = False
    secrets_file: SecretsFile = None
    output: eval_flags.OutputFile = None
    quiet: eval_flags.NoReport = False
    settings: dict[str, Any] = field(default_factory=dict)


@takes(RegradeFlags, eval_flags.plan_parameters("pass_threshold", "primary"))
def regrade(flags: RegradeFlags) -> DetailResult | int:
    """Score a run's stored conversations again, without calling the model under test.

    All new scores replace the old ones in one step.

    Example:
        osmosis eval regrade nightly
        osmosis eval regrade nightly --eval-fn rewards:stricter --pass-threshold 0.5
    """
    ctx = current()
    plan, options = load_run(ctx, flags.name, flags.secrets_file)
    plan = apply_settings(plan, flags.settings)
    if flags.eval_fn or flags.rubric:
        plan.score_fns = name_scorers(flags.eval_fn, flags.rubric)
    output = ctx.path(flags.output) if flags.output else None
    if output is not None:
        check_output(output)
    with print_aside():
        prepared = prepare(plan, replace(options, regrade="failed" if flags.failed_only else "all"))
        run = asyncio.run(run_main(prepared.run()))
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

    def draw(console: Console) -> None:
        print_text(console, note, "green")
        draw_report(console, run.plan, run.report)

    steps = next_steps(run.plan, run.report)
    return DetailResult(journal.redactor.data(data), exit_code=code, next_steps=steps, human=draw)


def load_run(ctx: AppContext, name: str, secrets_file: str | None) -> tuple[plans.EvalPlan, RunOptions]:
    folder = run_folder(name, ctx.cwd)
    journal = Journal(folder)
    plan = journal.plan().model_copy(update={"name": folder.name})
    options = stored_options(folder, journal.run().get("local"), ctx.environ)
    if options.rollout is not None:
        python = continue_inside(ctx, options.base_dir, options.rollout)
        apply_environment(ctx, options.env, options.secrets, secrets_file)
        return plan, replace(options, environ=ctx.environ, server_python=python)
    if secrets_file is not None:
        raise UsageError("--secrets-file only applies to the run of a config", hint="export the variables")
    return plan, options
