"""`osmosis eval submit` and `osmosis train submit`: check everything first, ask once, then one POST.

Nothing is sent when something would make the run other than what the person means; each finding names its fix,
and `--json` carries the same as data.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from osmosis.errors import AuthRequired
from osmosis.records.config import TrainingConfig
from osmosis.workspace.config_file import check_file, locate
from osmosis.workspace.layout import Workspace, find_workspace, pick_config
from osmosis.workspace.preflight import gather

from . import prompts
from .context import AppContext, current
from .results import OperationResult
from .reward_check import check_reward
from .run_show import finished_result, judged_there, watch
from .secrets_file import SecretsFile
from .submit_answer import printed, submitted
from .submit_case import SubmitCase, SubmitOptions, push, request_body
from .submit_checks import check_code, check_scope, invalid_config, logged_out, refusal, say_findings
from .submit_overrides import Limit, MaxCost, MaxTokens, Model, N, Overrides, Priority, RunName, RunTags, Shards
from .submit_plan import row_count, show_plan, submit_plan
from .submit_secrets import ask_for_secrets, find_secrets
from .training_gate import check_training, plan_lines
from .training_probe import probe_config, probed

WaitSync = Annotated[bool, typer.Option("--wait-sync", help="Wait until the platform has synced HEAD")]
AllowDirty = Annotated[bool, typer.Option("--allow-dirty", help="Run the synced commit despite local changes")]
SnapshotOption = Annotated[
    bool, typer.Option("--snapshot", help="Run the working tree as it is, without a commit on your branch")
]


def submit_eval(
    config: Annotated[
        str | None, typer.Argument(help="A config under configs/eval/, by path or name [default: the only one]")
    ] = None,
    model: Model = None,
    n: N = None,
    limit: Limit = None,
    shards: Shards = None,
    max_cost: MaxCost = None,
    max_tokens_total: MaxTokens = None,
    priority: Priority = None,
    name: RunName = None,
    tag: RunTags = None,
    yes: prompts.Yes = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Follow the run to its end, then show its figures")
    ] = False,
    wait_sync: WaitSync = False,
    allow_dirty: AllowDirty = False,
    snapshot: SnapshotOption = False,
    secrets_file: SecretsFile = None,
    fail_under: Annotated[
        float | None,
        typer.Option("--fail-under", min=0, max=1, help="With --wait: exit with 1 when the pass rate is below this"),
    ] = None,
) -> OperationResult:
    """Submit an evaluation to the platform, after checking config, code, dataset and secrets.

    Example:
        osmosis eval submit configs/eval/multiply.toml --wait
        osmosis eval submit multiply --yes --wait --fail-under 0.8
        osmosis eval submit multiply --model openai/gpt-5-mini --limit 50 --name mini-first-50
        osmosis eval submit multiply --shards auto --wait
    """
    changed = Overrides(model, n, limit, name, shards, tuple(tag or ()), max_cost, max_tokens_total, priority)
    options = SubmitOptions(
        "eval", config, yes, wait, wait_sync, allow_dirty, snapshot, secrets_file, fail_under, changed
    )
    return submit_config(current(), options)


def submit_train(
    config: Annotated[
        str | None, typer.Argument(help="A config under configs/training/, by path or name [default: the only one]")
    ] = None,
    model: Model = None,
    priority: Priority = None,
    name: RunName = None,
    tag: RunTags = None,
    yes: prompts.Yes = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Follow the run to its end")] = False,
    wait_sync: WaitSync = False,
    allow_dirty: AllowDirty = False,
    snapshot: SnapshotOption = False,
    secrets_file: SecretsFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Submit even if the evaluation says that nothing can be learned")
    ] = False,
    probe: Annotated[
        int | None,
        typer.Option(
            "--probe", min=1, metavar="N", help="First evaluate the base model on N rows, and use that for the check"
        ),
    ] = None,
) -> OperationResult:
    """Submit a training run, after checking config, code, dataset, secrets, and whether it can learn anything.

    The last check uses the newest evaluation of the same rollout and dataset or, with --probe N, runs N rows now with
    the base model and as many attempts per row as in training.

    Example:
        osmosis train submit configs/training/multiply.toml --wait
        osmosis train submit multiply --probe 8
        osmosis train submit multiply --yes
    """
    changed = Overrides(model=model, name=name, tags=tuple(tag or ()), priority=priority)
    options = SubmitOptions(
        "training",
        config,
        yes,
        wait,
        wait_sync,
        allow_dirty,
        snapshot,
        secrets_file,
        overrides=changed,
        force=force,
        probe=probe,
    )
    return submit_config(current(), options)


def submit_config(ctx: AppContext, options: SubmitOptions) -> OperationResult:
    """Check, confirm and submit; with `wait`, follow the run to its end."""
    workspace = find_workspace(ctx.cwd)
    path = _config_path(ctx, workspace, options)
    file = locate(path, workspace, options.kind)
    config, said = check_file(file, workspace)
    if config is None or any(p.severity == "error" for p in said):
        raise invalid_config(ctx, options, workspace, file, said)
    say_findings(ctx, said)
    config = options.overrides.apply(config)
    try:
        opened = ctx.client()
    except AuthRequired as login:
        raise logged_out(options, workspace, config.experiment, login) from login
    with opened as client:
        facts = gather(workspace.root, config.experiment)
        case = SubmitCase(ctx, options, client, workspace, path, config, facts)
        check_scope(case)
        if errors := check_code(case):
            raise refusal(case, errors)
        missing = find_secrets(case)
        if missing and not ctx.interactive:
            raise refusal(case, [], missing)
        ask_for_secrets(case, missing)
        case.dataset_rows = row_count(client, config.experiment.dataset)
        case.config = options.overrides.whole(config, case.dataset_rows)
        plan, check = submit_plan(case), None
        if options.kind == "training":
            check = check_training(ctx, client, request_body(case), force=options.force, eval_run=_probe(case))
            plan |= plan_lines(check)
            plan["reward"] = check_reward(ctx, workspace.root, config.experiment.rollout, config.env)
        show_plan(ctx, plan)
        if not prompts.confirm(ctx, f"Submit this {options.noun} run?", yes=options.yes):
            return OperationResult(f"{options.noun}.submit", "Cancelled.", status="cancelled")
        push(case)
        answer = client.runs(options.kind).submit(request_body(case))
        news = f"submitted {answer.name}: {answer.platform_url or ''}"
        checked: dict[str, object] = {"check": check.to_dict()} if check else {}
        if not options.wait:
            ctx.output.say(news)
            return submitted(case, answer, checked)
        seen = watch(ctx, client.runs(options.kind), answer.name, news=news)
        counted = judged_there(client, seen)
    shown = printed(case, answer).to_dict() | checked
    bar = options.fail_under
    return finished_result(f"{options.noun}.submit", seen, fail_under=bar, counted=counted, resource=shown)


def _probe(case: SubmitCase) -> str | None:
    """The name of an evaluation of the base model that was run just now, when one is wanted."""
    rows, config = case.options.probe, case.config
    if rows is None or not isinstance(config, TrainingConfig):
        return None
    wanted = probe_config(config, rows)
    push(case)
    body = request_body(replace(case, config=wanted))
    body.pop("name", None)  # that of the training run
    return probed(case.ctx, case.client.runs("eval"), body, wanted)


def _config_path(ctx: AppContext, workspace: Workspace, options: SubmitOptions) -> Path:
    if options.config and (ctx.path(options.config).exists() or options.config.endswith(".toml")):
        from_top = workspace.root / options.config  # as every message shows it
        return from_top if not ctx.path(options.config).exists() else ctx.path(options.config)
    found = pick_config(workspace, options.kind, options.config)
    return found if found.is_absolute() else ctx.path(found)
