"""Which agent a command means: `-m module:attribute`, an MCP folder or URL, or a rollout of the workspace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis.errors import UsageError, ValidationError, WorkspaceRequired
from osmosis.sdk.mcp import mcp_agent
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import find_workspace, pick_rollout

from .context import AppContext
from .own_environment import continue_inside

if TYPE_CHECKING:
    from osmosis.records.config import EvalConfig


@dataclass(frozen=True)
class AgentRef:
    """An agent, named but not loaded."""

    label: str
    """As shown."""
    base_dir: Path
    """Put on the import path."""
    module: str | None = None
    """For the loader: `module:attribute`, a file, a module."""
    mcp: str | None = None
    """A folder or a URL."""
    dataset: Path | None = None
    """The rollout's own data, when there is one."""
    config: EvalConfig | None = None
    """The rollout's eval config, when there is one."""


def find_agent(ctx: AppContext, name: str | None, module: str | None, mcp: str | None = None) -> AgentRef:
    """The one agent that is meant; `UsageError` when none or several are named."""
    given = [one for one in (name, module, mcp) if one]
    if len(given) > 1:
        raise UsageError("name one agent: a rollout, -m and --mcp cannot be used together")
    if mcp:
        return AgentRef(f"mcp:{mcp}", ctx.cwd, mcp=mcp if "://" in mcp else str(ctx.path(mcp)))
    if module:
        return AgentRef(module, ctx.cwd, module=module)
    if name and ":" in name:
        return AgentRef(name, ctx.cwd, module=name)
    return _of_workspace(ctx, name)


def _of_workspace(ctx: AppContext, name: str | None) -> AgentRef:
    try:
        workspace = find_workspace(ctx.cwd)
    except WorkspaceRequired:
        if name:
            raise
        raise UsageError(
            "no agent given", hint=f"in a workspace: osmosis {ctx.command} ROLLOUT; elsewhere: add -m module:attribute"
        ) from None
    folder = pick_rollout(workspace, name)
    name = folder.name
    continue_inside(ctx, workspace.root, name)
    entry, dataset, config = "main.py", name, None
    if folder.eval_config is not None:
        config, _ = load_eval_config(folder.eval_config, workspace.root)
        entry, dataset = config.experiment.entrypoint, config.experiment.dataset
    if not (folder.path / entry).is_file():
        raise ValidationError(f"rollouts/{name}/{entry} does not exist", hint=f"osmosis config check {name}")
    return AgentRef(name, folder.path, module=entry, dataset=workspace.local_dataset(dataset), config=config)


@asynccontextmanager
async def opened(ref: AgentRef, agent: Any, environ: Mapping[str, str]) -> AsyncIterator[Any]:
    """The loaded agent, ready to run; an MCP server is started for the block."""
    if ref.mcp is None:
        yield agent
        return

    async with mcp_agent(ref.mcp, environ=environ) as loop:
        yield loop
