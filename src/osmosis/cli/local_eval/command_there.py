"""`osmosis eval -m ... --on URL` is refused with the command that does it.

A platform runs the code of a commit with a dataset of its own, as a config of the workspace says; flags that name an
agent, a file and score functions of this folder are no config. What they have in common is put into the command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from osmosis.cli.context import AppContext
from osmosis.errors import OsmosisError, UsageError, WorkspaceRequired
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import Workspace, find_workspace

from .eval_flags import EvalFlags


def refused_there(ctx: AppContext, flags: EvalFlags, url: str) -> UsageError:
    """What to type in the place of this."""
    why = "--on runs a config of a workspace, and these flags name code and rows of this folder"
    try:
        workspace = find_workspace(ctx.cwd)
    except WorkspaceRequired:
        return UsageError(why, hint="osmosis init --here --platform, then osmosis rollout new NAME")
    fitting = [workspace.relative(path) for path in _configs(workspace, _rollout_of(ctx, workspace, flags))]
    if not fitting:
        return UsageError(why, hint="osmosis rollout new NAME makes one, with its config under configs/eval/")
    said = " or ".join(_command(config, flags, url) for config in fitting)
    return UsageError(why, hint=said)


def _rollout_of(ctx: AppContext, workspace: Workspace, flags: EvalFlags) -> str | None:
    """The rollout in whose folder the agent lies; None for one elsewhere."""
    file = ctx.path((flags.module or "").rpartition(":")[0] or ".")
    parts = Path(workspace.relative(file)).parts
    return parts[1] if len(parts) > 1 and parts[0] == "rollouts" else None


def _configs(workspace: Workspace, rollout: str | None) -> Iterator[Path]:
    for _, path in workspace.configs("eval"):
        try:
            config, _ = load_eval_config(path, workspace.root)
        except OsmosisError:
            continue
        if rollout in (None, config.experiment.rollout):
            yield path


def _command(config: str, flags: EvalFlags, url: str) -> str:
    words = ["osmosis", "eval", "run", config, "--on", url]
    for flag, value, default in (
        ("--model", flags.model, None),
        ("--base-url", flags.base_url, None),
        ("--n", flags.n, 1),
        ("--limit", flags.limit, None),
        ("--batch-size", flags.batch_size, "1"),
        ("--max-cost", flags.max_cost, None),
        ("--name", flags.name, None),
        ("--fail-under", flags.fail_under, None),
        ("-o", flags.output, None),
    ):
        if value != default:
            words += [flag, str(value)]
    for value in flags.param:
        words += ["--param", value]
    return shlex.join(words)
