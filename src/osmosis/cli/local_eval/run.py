"""`osmosis eval run`: a config of this workspace, run on this machine instead of on the platform.

Takes everything from the config: entrypoint, model, dataset, attempts, timeouts. A rollout whose dependencies are not
here runs in its own environment: that is made once, and this command continues inside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...errors import NotFound, UsageError, ValidationError
from ..context import AppContext, current
from ..output import DetailResult
from ..own_environment import continue_inside

if TYPE_CHECKING:
    from ...records.config import EvalConfig
    from ...records.plan import EvalPlan
    from ...workspace.layout import Workspace


def run(
    config: str = typer.Argument(None, help="A config under configs/eval/, by path or name; none: the only one"),
    name: str = typer.Option(None, "--name", help="Name of the run; one that exists goes on"),
    dataset_file: str = typer.Option(None, "--dataset-file", help="Rows from this file [default: data/<dataset>.*]"),
    rows: str = typer.Option(None, "--rows", help="Only these rows: 3,7,10-20"),
    limit: int = typer.Option(None, "--limit", min=1, help="First N rows [default: the config's limit, else all]"),
    n: int = typer.Option(None, "--n", min=1, help="Attempts per row [default: the config's]"),
    model: str = typer.Option(None, "--model", help="Another model than the config's"),
    base_url: str = typer.Option(None, "--base-url", help="OpenAI-compatible endpoint, up to /v1"),
    batch_size: int = typer.Option(None, "--batch-size", "--max-in-flight", min=1, help="Rollouts at once"),
    secrets_file: str = typer.Option(None, "--secrets-file", help="NAME=value lines; - is stdin"),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Run failed and skipped rollouts again"),
    output: str = typer.Option(None, "-o", "--output", help="Write the results document"),
    fail_under: float = typer.Option(None, "--fail-under", help="Exit 1 when the first score's mean is below"),
    upload: bool = typer.Option(False, "--upload", help="Upload the run to the platform when it is over"),
    yes: bool = typer.Option(False, "--yes", "-y", help="Agree beforehand"),
) -> DetailResult | int:
    """Run a config of this workspace here: no platform, no push. With --upload, the platform shows the run afterwards.

    Example:
        osmosis eval run multiply --limit 5
        osmosis eval run configs/eval/multiply.toml --model openai/gpt-5-mini --n 3
        osmosis eval run multiply --upload
    """
    given = {"name": name, "rows": rows, "limit": limit, "n": n, "model": model, "base_url": base_url}
    given |= {"batch_size": batch_size}
    ctx = current()
    if rows is not None and limit is not None:
        raise UsageError("--rows and --limit exclude each other", hint="--rows 3,7,10-20 names every row")
    from ...workspace.config import load_eval_config
    from ...workspace.layout import find_workspace, pick_config
    from .checks import check_limits
    from .session import LocalRun, run_local, runs_dir

    check_limits(fail_under=fail_under)
    workspace = find_workspace(ctx.cwd)
    typed = ctx.path(config) if config else None
    path = typed if typed and typed.is_file() else ctx.path(pick_config(workspace, "eval", config))
    loaded, _ = load_eval_config(path, workspace.root)
    continue_inside(ctx, workspace.root, loaded.experiment.rollout)
    surround(ctx, loaded.env, loaded.secret_names(), secrets_file)
    local = LocalRun(
        _plan(workspace, loaded, given, _dataset(ctx, workspace, loaded, dataset_file)),
        workspace.root,
        runs_dir(ctx),
        secrets=loaded.secret_names(),
        rollout=loaded.experiment.rollout,
        env=loaded.env,
        output=ctx.path(output) if output else None,
        fail_under=fail_under,
        yes=yes,
        retry_failed=[] if retry_failed else None,
    )
    if not upload:
        return run_local(ctx, local)
    from ...engine.journal import Journal
    from .upload import upload_after

    with ctx.client():  # a missing login is told before anything is spent
        pass
    return upload_after(ctx, Journal(local.folder), run_local(ctx, local))


def _dataset(ctx: AppContext, workspace: Workspace, config: EvalConfig, given: str | None) -> Path:
    if given:
        return ctx.path(given)
    found = workspace.local_dataset(config.experiment.dataset)
    if found is None:
        name = config.experiment.dataset
        raise NotFound(
            f"there is no data/{name}.* in this workspace",
            hint=f"osmosis dataset download {name} -o data, or --dataset-file FILE",
        )
    return found


def _plan(workspace: Workspace, config: EvalConfig, given: dict[str, Any], dataset: Path) -> EvalPlan:
    """The config as a plan; flags win."""
    from ...records.plan import EvalPlan, ModelSpec, Selection, Timeouts
    from .plan import check_name, generated_name, parse_model, parse_rows

    experiment, wanted, advanced = config.experiment, config.evaluation, config.advanced
    if given["model"] is None:
        parse = parse_model if given["base_url"] else ModelSpec.parse
        spec = parse(
            experiment.model_path,
            base_url=given["base_url"] or advanced.base_url,
            api_key_env=advanced.api_key_env,
            params=dict(advanced.params),
        )
    else:
        spec = parse_model(given["model"], base_url=given["base_url"], params=dict(advanced.params))
    agent = f"rollouts/{experiment.rollout}/{experiment.entrypoint}"
    name = generated_name(experiment.rollout, str(dataset)) if given["name"] is None else given["name"]
    check_name(name)
    return EvalPlan(
        name=name,
        agent=agent,
        model=spec,
        dataset=str(dataset),
        selection=Selection(
            limit=given["limit"] or wanted.limit, rows=None if given["rows"] is None else parse_rows(given["rows"])
        ),
        attempts=given["n"] or wanted.n,
        concurrency=given["batch_size"] or wanted.batch_size,
        pass_threshold=wanted.pass_threshold,
        timeouts=Timeouts(agent_s=wanted.agent_workflow_timeout_s, score_s=wanted.grader_timeout_s),
    )


def surround(ctx: AppContext, env: dict[str, str], secrets: list[str], secrets_file: str | None) -> None:
    """A config's variables and secrets, for this process: secrets from the file, else from the environment."""
    from ..submit import read_secrets_file

    values = {**env, **(read_secrets_file(ctx, secrets_file) if secrets_file else {})}
    ctx.environ = {**ctx.environ, **values}
    missing = [name for name in secrets if not ctx.environ.get(name)]
    if missing:
        raise ValidationError(
            f"secrets are not set here: {', '.join(missing)}",
            hint=f"export {missing[0]}=..., or --secrets-file FILE",
            missing=missing,
        )
    # The rollout's code runs in this process and reads its variables where it always does.
    os.environ.update({name: ctx.environ[name] for name in (*env, *secrets)})
