"""`osmosis eval run`: a config of this workspace, run on this machine instead of on the platform.

Takes everything from the config: entrypoint, model, dataset, attempts, timeouts. A rollout whose dependencies are not
here runs in its own environment: that is made once, and this command continues inside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from osmosis.cli.context import AppContext, current
from osmosis.cli.flags import takes
from osmosis.cli.own_environment import continue_inside
from osmosis.cli.results import DetailResult, OperationResult
from osmosis.cli.secrets_file import read_secrets_file
from osmosis.engine.journal import Journal
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.local.request import Request, check_name, generated_name, parse_model, runs_folder
from osmosis.local.workers import worker_count
from osmosis.records.config import EvalConfig
from osmosis.records.plan import EvalPlan, ModelSpec, Selection
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import Workspace, find_workspace, pick_config

from .eval_flags import BaseUrl, FailUnder, OutputFile, Param, Price, Workers, Yes
from .plan import check_limits, further, parse_price, parse_rows
from .terminal import Ending, run_local


@dataclass(frozen=True)
class RunFlags:
    """What `osmosis eval run` is told; what is not given is the config's."""

    config: Annotated[
        str | None, typer.Argument(help="A config under configs/eval/, by path or name [default: the only one]")
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed")] = None
    dataset_file: Annotated[Path | None, typer.Option(help="Read rows from this file [default: data/<dataset>.*]")] = (
        None
    )
    rows: Annotated[str | None, typer.Option(help="Only these row indices: 3,7,10-20")] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="Run the first N rows [default: the config's limit, else all]")
    ] = None
    n: Annotated[int | None, typer.Option("--n", min=1, help="Attempts per row [default: the config's]")] = None
    model: Annotated[str | None, typer.Option(help="Model to use instead of the config's")] = None
    base_url: BaseUrl = None
    param: Param = field(default_factory=list)
    max_cost: Annotated[float | None, typer.Option(help="Pause the run after spending this many USD")] = None
    price: Price = None
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "--max-in-flight", min=1, help="Maximum number of concurrent rollouts")
    ] = None
    workers: Workers = "1"
    secrets_file: Annotated[Path | None, typer.Option(help="File of NAME=value lines; - is stdin")] = None
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Retry failed and skipped rollouts")] = False
    output: OutputFile = None
    fail_under: FailUnder = None
    upload: Annotated[bool, typer.Option("--upload", help="Upload the run to the platform when it finishes")] = False
    on: Annotated[
        str | None,
        typer.Option(help="Run it on the platform at this URL: submit this tree, follow, download", metavar="URL"),
    ] = None
    shards: Annotated[
        str | None,
        typer.Option(help="With --on: number of jobs to split the rows over, or auto [default: the config's]"),
    ] = None
    yes: Yes = False


@takes(RunFlags)
def run(flags: RunFlags) -> DetailResult | OperationResult | int:
    """Run a config on this machine: no platform, no push. Add --upload to show the run on the platform.

    With --on URL it runs there instead: the working tree with uncommitted changes, on all rows. The results are
    downloaded. Ctrl-C leaves it running.

    Example:
        osmosis eval run multiply --limit 5
        osmosis eval run configs/eval/multiply.toml --model openai/gpt-5-mini --n 3
        osmosis eval run multiply --upload
        osmosis eval run multiply --on https://osmosis.example.com --shards auto
    """
    ctx = current()
    if flags.rows is not None and flags.limit is not None:
        raise UsageError("--rows and --limit cannot be used together", hint="--rows 3,7,10-20 lists every row")
    check_limits(fail_under=flags.fail_under, max_cost=flags.max_cost)
    if flags.on is not None or flags.upload:
        from . import elsewhere, upload  # bring every body of the platform's API
    if flags.on is not None:
        return elsewhere.run_elsewhere(ctx, flags, flags.on)
    if flags.shards is not None:
        raise UsageError("--shards needs --on URL", hint="on this machine: --workers N")
    workspace = find_workspace(ctx.cwd)
    typed = ctx.path(flags.config) if flags.config else None
    path = typed if typed and typed.is_file() else ctx.path(pick_config(workspace, "eval", flags.config))
    config, _ = load_eval_config(path, workspace.root, to_run=True)
    continue_inside(ctx, workspace.root, config.experiment.rollout)
    surround(ctx, config.env, config.secret_names(), flags.secrets_file)
    request = Request(
        _plan(config, flags, _dataset(ctx, workspace, config, flags.dataset_file)),
        workspace.root,
        runs_folder(ctx.cwd),
        ctx.environ,
        secrets=config.secret_names(),
        retry_failed=[] if flags.retry_failed else None,
        rollout=config.experiment.rollout,
        env=config.env,
        workers=worker_count(flags.workers),
        # An agent loop brings its reward with each rollout, or does not: only running it tells.
        needs_scores=False,
    )
    ending = Ending(ctx.path(flags.output) if flags.output else None, flags.fail_under, flags.yes)
    if not flags.upload:
        return run_local(ctx, request, ending)
    with ctx.client():  # a missing login is told before anything is spent
        pass
    assert request.folder is not None
    return upload.upload_after(ctx, Journal(request.folder), run_local(ctx, request, ending))


def surround(ctx: AppContext, env: Mapping[str, str], secrets: Sequence[str], secrets_file: Path | None) -> None:
    """A config's variables and secrets, for this process: secrets from the file, else from the environment."""
    values = {**env, **(read_secrets_file(ctx, str(secrets_file)) if secrets_file else {})}
    ctx.environ = {**ctx.environ, **values}
    missing = [name for name in secrets if not ctx.environ.get(name)]
    if missing:
        raise ValidationError(
            f"missing secrets: {', '.join(missing)}",
            hint=f"export {missing[0]}=..., or use --secrets-file FILE",
            missing=missing,
        )
    # The rollout's code runs in this process and reads its variables where it always does.
    os.environ.update({name: ctx.environ[name] for name in (*env, *secrets)})


def _dataset(ctx: AppContext, workspace: Workspace, config: EvalConfig, given: Path | None) -> Path:
    if given is not None:
        return ctx.path(given)
    found = workspace.local_dataset(config.experiment.dataset)
    if found is None:
        name = config.experiment.dataset
        raise NotFound(
            f"no file data/{name}.* in this workspace",
            hint=f"osmosis dataset download {name} -o data, or --dataset-file FILE",
        )
    return found


def _plan(config: EvalConfig, flags: RunFlags, dataset: Path) -> EvalPlan:
    """The config as a plan; flags win."""
    name = generated_name(config.experiment.rollout, str(dataset)) if flags.name is None else flags.name
    rows = None if flags.rows is None else parse_rows(flags.rows)
    plan = EvalPlan.from_config(
        config,
        name=check_name(name, "--name"),
        dataset=str(dataset),
        model=_model(config, flags),
        selection=Selection(limit=flags.limit or config.evaluation.limit, rows=rows),
        attempts=flags.n,
        concurrency=flags.batch_size,
    )
    plan.model.price = None if flags.price is None else parse_price(flags.price)
    if flags.max_cost is not None:
        plan.budget.max_cost_usd = flags.max_cost
    return plan


def _model(config: EvalConfig, flags: RunFlags) -> ModelSpec:
    """The config's model, at another endpoint where one is given; else the one given, with the config's parameters."""
    advanced = config.advanced
    if flags.model is None and flags.base_url is None:
        spec = ModelSpec.from_config(config)
        return spec.model_copy(update={"params": {**spec.params, **further(flags.param)}})
    return parse_model(
        config.experiment.model_path if flags.model is None else flags.model,
        base_url=flags.base_url,
        api_key_env=advanced.api_key_env if flags.model is None else None,
        params={**advanced.params, **further(flags.param)},
        option="--base-url",
    )
