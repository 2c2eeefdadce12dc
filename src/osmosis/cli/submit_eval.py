"""`osmosis eval submit`: its flags, and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from . import prompts
from .context import current
from .results import OperationResult
from .secrets_file import SecretsFile
from .submit import AllowDirty, SnapshotOption, WaitSync, submit_config
from .submit_case import SubmitOptions
from .submit_overrides import Limit, MaxCost, MaxTokens, Model, N, Overrides, Priority, RunName, RunTags, Shards


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
