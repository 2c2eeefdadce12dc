from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from osmosis.cli.core import completion, prompts
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, SecretsFile, current
from osmosis.cli.core.results import NextStep, OperationResult
from osmosis.cli.eval import submit_checks
from osmosis.cli.eval.flags import ApiKeyEnv, BaseUrl
from osmosis.cli.eval.follow import finished_result, judge_run, watch
from osmosis.cli.eval.submit_checks import AnyConfig, PlatformAnswers, SubmitCase, SubmitOptions
from osmosis.cli.schema import GitPlace, PrintedSource, PrintedSubmit
from osmosis.errors import AuthRequired, NotFound
from osmosis.records.api.runs import SubmittedRun
from osmosis.records.config.optimize import OptimizeConfig
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.rows import count_sampled
from osmosis.records.run.status import NOUNS
from osmosis.workspace.config_file import check_file, locate
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import Workspace, find_workspace, pick_config

FEW_ROWS = 20


def config_argument(kind: str) -> object:
    text = f"A config under configs/{kind}/, by path or name [default: the only one]"
    return Argument(help=text, autocompletion=completion.configs_of(kind))


@dataclass(frozen=True)
class SharedFlags:
    wait: Annotated[bool, Option("--wait", "-w", help="Follow the run to its end, then show its figures")] = False
    wait_sync: Annotated[bool, Option(help="Wait until the platform has synced HEAD")] = False
    allow_dirty: Annotated[bool, Option(help="Run the synced commit despite local changes")] = False
    secrets_file: SecretsFile = None


@dataclass(frozen=True)
class SubmitFlags(SharedFlags):
    model: Annotated[str | None, Option(help="Model to use instead of the config's: NAME, or NAME@URL")] = None
    priority: Annotated[int | None, Option(help="Priority in the workspace's queue", hidden=True)] = None
    name: Annotated[str | None, Option(help="Name of the run [default: the rollout's name and a number]")] = None
    tag: Annotated[list[str], Option(metavar="TAG", help="Tag of the run; repeatable")] = field(default_factory=list)
    snapshot: Annotated[bool, Option(help="Run the working tree as it is, without a commit on your branch")] = False


@dataclass(frozen=True)
class EvalSubmitFlags(SubmitFlags):
    config: Annotated[str | None, config_argument("eval")] = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    n: Annotated[int | None, Option(min=1, help="Attempts per row [default: the config's]")] = None
    limit: Annotated[int | None, Option(min=1, help="Run the first N rows [default: the config's]")] = None
    held_out_of: Annotated[str | None, Option(metavar="RUN", help="Only rows this training run did not train on")] = (
        None
    )
    shards: Annotated[str | None, Option(help="Jobs to split the rows over, or auto [default: the config's]")] = None
    max_cost: Annotated[float | None, Option(help="No more rollouts after so many USD [default: the config's]")] = None
    max_tokens_total: Annotated[int | None, Option(min=1, hidden=True)] = None
    fail_under: Annotated[float | None, Option(min=0, max=1, help="With --wait: exit 1 when clearly below this")] = None


@takes(EvalSubmitFlags)
def submit_eval(flags: EvalSubmitFlags) -> OperationResult:
    """Submit an evaluation to the platform, after checking config, code, dataset and secrets.

    Example:
        osmosis eval submit configs/eval/multiply.toml --wait
        osmosis eval submit multiply --yes --wait --fail-under 0.8
        osmosis eval submit multiply --model openai/gpt-5-mini --limit 50 --name mini-first-50
        osmosis eval submit multiply --shards auto --wait
        osmosis eval submit multiply --model osmosis/multiply-1 --held-out-of multiply-1
    """
    return submit_config(current(), SubmitOptions.from_flags("eval", flags))


@dataclass(frozen=True)
class SubmitVerdict:
    lines: Mapping[str, object] = field(default_factory=dict)
    printed: Mapping[str, object] = field(default_factory=dict)


def submit_config(
    ctx: AppContext, options: SubmitOptions, check: Callable[[SubmitCase], SubmitVerdict] = lambda _: SubmitVerdict()
) -> OperationResult:
    """Check, confirm and submit a config; with `wait`, follow it. Checks come before the request that starts it."""
    workspace = find_workspace(ctx.cwd)
    path = _find_config(ctx, workspace, options)
    file = locate(path, workspace, options.kind)
    config, problems = check_file(file, workspace)
    if config is None or any(problem.severity == "error" for problem in problems):
        raise submit_checks.explain_config(ctx, options, workspace, file, problems)
    submit_checks.warn_of(ctx, problems)
    config = options.apply(config)
    return submit_checked(ctx, options, workspace, path, config, check)


def submit_checked(
    ctx: AppContext,
    options: SubmitOptions,
    workspace: Workspace,
    path: Path,
    config: AnyConfig,
    check: Callable[[SubmitCase], SubmitVerdict],
    build_body: Callable[[SubmitCase], Mapping[str, object]] = SubmitCase.request_body,
) -> OperationResult:
    try:
        client = ctx.client()
    except AuthRequired as login:
        raise submit_checks.explain_login(options, workspace, config, login) from login
    answers = PlatformAnswers.ask(client, config)
    source = read_source(workspace.root)
    case = SubmitCase(ctx, options, client, workspace, path, config, source, answers)
    submit_checks.check_scope(case)
    if errors := submit_checks.check_code(case):
        raise submit_checks.explain_refusal(case, errors)
    missing = submit_checks.find_secrets(case)
    if missing and not ctx.interactive:
        raise submit_checks.explain_refusal(case, [], missing)
    for name in missing:
        case.secrets[name] = prompts.hidden(ctx, f"Value of {name} (for this run only)", flags=["--secrets-file"])
    with suppress(NotFound):  # the submit says so, with everything else that is wrong
        case.dataset_rows = answers.datasets["experiment"].result().row_count
    case.config = options.select_all_rows(config, case.dataset_rows)
    plan, verdict = describe_plan(case), check(case)
    for key, value in {**plan, **verdict.lines}.items():
        if value:
            ctx.output.say(f"  {key:<9} {value}")
    prompts.agree(ctx, f"Submit this {options.noun} run?", f"{options.noun}.submit")
    case.push()
    run = client.runs(options.kind).submit(build_body(case))
    news = f"submitted {run.name}: {run.platform_url or ''}"
    if run.sandbox:
        ctx.output.say(f"  {'sandbox':<9} {run.sandbox}")
    printed = {**_print_submit(case, run).to_dict(), **verdict.printed}
    if not options.wait:
        ctx.output.say(news)
        steps = [NextStep("follow it", command=f"osmosis {NOUNS[options.kind]} wait {run.name}")]
        steps += [NextStep("open", url=run.platform_url)] if run.platform_url else []
        if isinstance(config, EvalConfig) and config.schedule is not None and case.snapshot is None:
            command = f"osmosis eval schedules --stop {config.schedule_name}"
            steps.append(NextStep(f"stop what repeats it every {config.schedule.every}", command=command))
        message = f"{options.noun} run {run.name} is {run.status}"
        return OperationResult(f"{options.noun}.submit", message, printed, next_steps=steps)
    detail = watch(ctx, client.runs(options.kind), run.name, news=news)
    judged = judge_run(client, detail)
    operation, bar = f"{options.noun}.submit", options.fail_under
    return finished_result(operation, detail, fail_under=bar, judged=judged, resource=printed)


def _find_config(ctx: AppContext, workspace: Workspace, options: SubmitOptions) -> Path:
    if options.config and ctx.path(options.config).exists():
        return ctx.path(options.config)
    if options.config and options.config.endswith(".toml"):
        return workspace.root / options.config  # as every message shows it
    return ctx.path(pick_config(workspace, options.kind, options.config))


def describe_plan(case: SubmitCase) -> dict[str, object]:
    config, source = case.config, case.source
    experiment = config.experiment
    code = "HEAD " + str(source.commit)[:12] if source else "?"
    if case.snapshot is not None:
        code = f"snapshot {case.snapshot.commit[:12]} of this working tree"
    elif experiment.commit_sha or experiment.branch:
        code = f"commit {experiment.commit_sha}" if experiment.commit_sha else f"branch {experiment.branch}"
    plan: dict[str, object] = {
        "name": case.options.name,
        "tags": ", ".join(case.options.tags) or None,
        "config": case.workspace.relative(case.path),
        "platform": case.ctx.platform_url,
        "rollout": f"{experiment.rollout} ({experiment.entrypoint or experiment.agent})",
        "code": code,
        "model": experiment.model_path,
        "dataset": experiment.dataset,
    }
    if isinstance(config, EvalConfig):
        if config.advanced.base_url:
            key = f", key {config.advanced.api_key_env}" if config.advanced.api_key_env else ""
            plan["model"] = f"{experiment.model_path} at {config.advanced.base_url}{key}"
        plan["rows"] = _describe_rows(case, config)
        if config.schedule is not None and case.snapshot is None:
            plan["schedule"] = f"{config.schedule_name}, again every {config.schedule.every}"
    plan["env"] = ", ".join(sorted(config.env)) or None
    plan["secrets"] = ", ".join(config.secret_names()) or None
    return plan


def _describe_rows(case: SubmitCase, config: EvalConfig) -> str:
    evaluation, total = config.evaluation, case.dataset_rows
    if isinstance(config, OptimizeConfig):
        return f"{total}, at most {config.optimize.max_rollouts:,} rollouts, {evaluation.batch_size} at once"
    each = f"x {evaluation.n} attempt{'s' * (evaluation.n != 1)}, {evaluation.batch_size} at once"
    if evaluation.held_out_of:
        at_most = f"at most {evaluation.limit} of " if evaluation.limit else ""
        return f"{at_most}those that {evaluation.held_out_of} did not train on {each}"
    if not total:
        return f"{f'the first {evaluation.limit}' if evaluation.limit else 'a random 10 %'} {each}"
    count = count_sampled(total, evaluation.limit)
    extent = "" if count == total else f" (the first {count})" if evaluation.limit else " (a random 10 %)"
    if count < min(total, FEW_ROWS):
        message = f"{count} of {total} rows run{extent}: too few to tell one agent from another"
        more = f"--limit {min(total, FEW_ROWS)}, or limit in [evaluation]"
        case.ctx.output.warn("FEW_ROWS", f"{message}; for more: {more}")
    return f"{count} of {total}{extent} {each}"


def _print_submit(case: SubmitCase, run: SubmittedRun) -> PrintedSubmit:
    experiment, source = case.config.experiment, case.source
    return PrintedSubmit(
        id=run.id,
        name=run.name,
        status=run.status,
        model_name=experiment.model_path,
        dataset_name=experiment.dataset,
        created_at=run.created_at,
        url=run.platform_url,
        git=GitPlace(identity=source.identity, remote_url=source.remote_url) if source else None,
        workspace_directory=str(case.workspace.root),
        config=PrintedSource(
            rollout=experiment.rollout,
            entrypoint=experiment.entrypoint or experiment.agent,
            model=experiment.model_path,
            dataset=experiment.dataset,
            branch=run.branch or experiment.branch,
            commit_sha=run.commit_sha or experiment.commit_sha,
        ),
    )
