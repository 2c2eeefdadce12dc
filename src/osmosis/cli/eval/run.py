"""`osmosis eval run`: a config, a set or an agent, here or with --on on a platform. Flags win over the config."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current, read_secrets_file
from osmosis.cli.core.results import Column, DetailResult, ListResult, OperationResult, to_json
from osmosis.cli.eval.flags import DEBUG_FOLDER, RunFlags, plan_parameters
from osmosis.cli.eval.plan import apply_changes, baseline_specs, build_plan, config_plan, is_config_key, list_settings
from osmosis.cli.eval.progress import Ending, run_local
from osmosis.engine.journal import Journal
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.local.run_options import RunOptions, check_classes, runs_folder
from osmosis.local.workers import worker_count
from osmosis.records.config.export import Export
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.plan import EvalPlan
from osmosis.sdk.agent_loop import trace_folder
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import Workspace, find_workspace, pick_config

_OF_AGENT = (
    *("grader", "eval_fn", "rubric", "server_key_env", "baseline", "baseline_model", "baseline_base_url"),
    *("pilot", "secret", "debug"),
)
_SET = ("offset", "max_turns", "max_tokens", "pass_threshold", "reduce", "group_by", "primary", "price", "seed")
"""Flags that lists do not show, because `--set` says the same."""


@takes(RunFlags, plan_parameters(hidden=_SET))
def run(flags: RunFlags) -> DetailResult | OperationResult | ListResult | int:
    r"""Evaluate on this machine: a config or a set of this workspace, or an agent named by flags.

    Every rollout is scored and saved, so an interrupted run can be resumed. With --on URL, a config runs on a platform
    instead: the working tree with uncommitted changes, on all rows; the results are downloaded, Ctrl-C leaves it
    running. `osmosis eval -m ...` is the same as `osmosis eval run -m ...`.

    Example:
        osmosis eval run multiply --limit 5
        osmosis eval run configs/eval/multiply.toml --model openai/gpt-5-mini --n 3 --upload
        osmosis eval run multiply --on https://osmosis.example.com --shards auto
        osmosis eval run nightly --name tuesday --baseline monday --fail-on-regression
        osmosis eval run -m server:agent_loop -d test_data.jsonl --eval-fn rewards:compute_reward \
            --model my-model --base-url http://localhost:8000/v1 --n 5 --batch-size 16 -o results.json
    """
    ctx = current()
    if "help" in flags.set:
        columns = [Column("key", "Key"), Column("default", "Default", show=to_json), Column("about", "What it is")]
        return ListResult(list_settings(), columns)
    if any((flags.rollout_port, flags.listener_port, flags.advertise_url, flags.tunnel)):
        ctx.output.warn("NOT_USED", "a local run opens no port: its rollouts run in this process")
    if flags.names_agent or (flags.dataset and not flags.words and not ctx.in_workspace):
        return run_agent(ctx, flags)
    if flags.fail_on_regression and not flags.baseline:
        raise UsageError("--fail-on-regression needs --baseline", hint="--baseline NAME of an earlier execution")
    if len(flags.words) > 1:
        raise UsageError(f"unexpected argument: {flags.words[1]}", hint="osmosis eval run --help")
    word = flags.words[0] if flags.words else None
    if word is not None and _names_set(ctx, word):
        from osmosis.cli.eval.set import run_set  # brings every body of the platform's API

        return run_set(ctx, word, flags)
    return run_config(ctx, flags, word)


def _names_set(ctx: AppContext, word: str) -> bool:
    path = ctx.path(word)
    if path.is_file():
        return path.parent.name == "sets"
    name = f"{word.removesuffix('.toml')}.toml"
    configs = next((root / "configs" for root in (ctx.cwd, *ctx.cwd.parents) if (root / "configs").is_dir()), ctx.cwd)
    return (configs / "sets" / name).is_file() and not (configs / "eval" / name).is_file()


def run_agent(ctx: AppContext, flags: RunFlags) -> DetailResult | int:
    if flags.on is not None:
        from osmosis.cli.eval.on_platform import refuse_agent  # reads configs, which no other local run does

        raise refuse_agent(ctx, flags, flags.on)
    if flags.words and not flags.retry_failed:
        raise UsageError(f"unexpected argument: {flags.words[0]}", hint="osmosis eval --help")
    for name in ("secrets_file", "shards"):
        if getattr(flags, name):
            raise UsageError(f"--{name.replace('_', '-')} only applies to a config", hint="osmosis eval run CONFIG")
    check_classes(flags.words)
    runs = runs_folder(ctx.cwd)
    plan = build_plan(flags, base_dir=ctx.cwd, runs_dir=runs)
    options = RunOptions(
        ctx.cwd,
        runs,
        ctx.environ,
        grader=flags.grader,
        api_key=flags.api_key,
        server_key_env=flags.server_key_env,
        secrets=flags.secret,
        retry_failed=flags.words if flags.retry_failed else None,
        baselines=baseline_specs(flags),
        pilot=flags.pilot,
        workers=worker_count(flags.workers),
        export=read_export(flags.export),
    )
    trace_folder.set(ctx.path(DEBUG_FOLDER) if flags.debug else None)
    return _run_and_upload(ctx, flags, plan, options)


def read_export(texts: Sequence[str], config: Export | None = None) -> Export | None:
    if not texts:
        return config
    try:
        return Export.model_validate({**(config.to_dict() if config else {}), "targets": list(dict.fromkeys(texts))})
    except PydanticError as error:
        context = error.errors()[0].get("ctx", {})
        raise UsageError(f"--export: {context.get('what', error)}", hint=f"--export {context.get('fix', '')}") from None


def run_config(ctx: AppContext, flags: RunFlags, name: str | None) -> DetailResult | OperationResult | int:
    for flag in _OF_AGENT:
        if getattr(flags, flag):
            hint = "osmosis eval run -m module:attr -d DATA ..."
            raise UsageError(f"--{flag.replace('_', '-')} needs -m: a config says it itself", hint=hint)
    if flags.on is not None:
        from osmosis.cli.eval.on_platform import run_on_platform  # brings every body of the platform's API

        return run_on_platform(ctx, flags, name, flags.on)
    if flags.shards is not None:
        raise UsageError("--shards needs --on URL", hint="on this machine: --workers N")
    workspace = find_workspace(ctx.cwd)
    typed = ctx.path(name) if name else None
    path = typed if typed and typed.is_file() else ctx.path(pick_config(workspace, "eval", name))
    config, _ = load_eval_config(path, workspace.root, to_run=True)
    changes = [text for text in flags.set if is_config_key(text)]
    config = apply_changes(config, changes) if changes else config
    flags = replace(flags, set=[text for text in flags.set if text not in changes])
    from osmosis.cli.agents import continue_inside  # a fifth of the start of an agent named by flags

    python = continue_inside(ctx, workspace.root, config.experiment.rollout)
    apply_environment(ctx, config.env, config.secret_names(), flags.secrets_file)
    plan = config_plan(config, flags, find_dataset(ctx, workspace, config, flags.dataset))
    options = RunOptions(
        workspace.root,
        runs_folder(ctx.cwd),
        ctx.environ,
        api_key=flags.api_key,
        secrets=config.secret_names(),
        retry_failed=[] if flags.retry_failed else None,
        rollout=config.experiment.rollout,
        server_python=python,
        env=config.env,
        workers=worker_count(flags.workers),
        export=read_export(flags.export, config.export),
        # An agent loop brings its reward with each rollout, or does not: only running it tells.
        needs_scores=False,
    )
    return _run_and_upload(ctx, flags, plan, options)


def _run_and_upload(ctx: AppContext, flags: RunFlags, plan: EvalPlan, options: RunOptions) -> DetailResult | int:
    folder = options.folder(plan)
    if flags.fresh and folder is not None and folder.exists():
        archive = folder.with_name(f"{folder.name}.archive-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
        folder.rename(archive)
        ctx.output.say(f"the run before is set aside as {archive.name}")
    output = ctx.path(flags.output) if flags.output else None
    ending = Ending(output, flags.fail_under, flags.quiet and not flags.verbose)
    if not flags.upload:
        return run_local(ctx, plan, options, ending)
    ctx.client()  # a missing login is reported before anything is spent
    assert folder is not None
    from osmosis.cli.eval.transfer import upload_after  # brings every body of the platform's API

    return upload_after(ctx, Journal(folder), run_local(ctx, plan, options, ending))


def apply_environment(
    ctx: AppContext, env: Mapping[str, str], secrets: Sequence[str], secrets_file: str | None
) -> None:
    ctx.environ = {**ctx.environ, **env, **(read_secrets_file(ctx, secrets_file) if secrets_file else {})}
    missing = [name for name in secrets if not ctx.environ.get(name)]
    if missing:
        message = f"missing secrets: {', '.join(missing)}"
        raise ValidationError(message, hint=f"export {missing[0]}=..., or use --secrets-file FILE", missing=missing)
    # The rollout's code runs in this process and reads its variables where it always does.
    os.environ.update({name: ctx.environ[name] for name in (*env, *secrets)})


def find_dataset(ctx: AppContext, workspace: Workspace, config: EvalConfig, file: Path | None) -> Path:
    if file is not None:
        return ctx.path(file)
    name = config.experiment.dataset
    path = workspace.local_dataset(name)
    if path is None:
        message = f"no file data/{name}.* in this workspace"
        raise NotFound(message, hint=f"osmosis dataset download {name} -o data, or --dataset-file FILE")
    return path
