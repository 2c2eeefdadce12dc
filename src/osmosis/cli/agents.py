"""Agents by name. A command continues in the rollout's own environment, from the cache of jobs, before it imports
code."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from osmosis.base import paths
from osmosis.base.installation import build_wheel, install_command
from osmosis.cli.core.context import INSIDE, AppContext
from osmosis.errors import UsageError, ValidationError, WorkspaceRequired
from osmosis.jobs.context import JobLog
from osmosis.jobs.prepare.environment import Builder
from osmosis.jobs.prepare.project import RolloutProject, read_project
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.job import LogLine
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.doctor import find_uv
from osmosis.workspace.layout import find_workspace, pick_rollout


@dataclass(frozen=True)
class AgentRef:
    label: str
    base_dir: Path
    module: str | None = None
    mcp: str | None = None
    dataset: Path | None = None
    config: EvalConfig | None = None
    python: str | None = None  # Of an older generation: it starts the entrypoint as a server


def find_agent(ctx: AppContext, name: str | None, module: str | None, mcp: str | None = None) -> AgentRef:
    if len([value for value in (name, module, mcp) if value]) > 1:
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
        hint = f"in a workspace: osmosis {ctx.command} ROLLOUT; elsewhere: add -m module:attribute"
        raise UsageError("no agent given", hint=hint) from None
    folder = pick_rollout(workspace, name)
    name = folder.name
    python = continue_inside(ctx, workspace.root, name)
    entry, dataset, config = "main.py", name, None
    if folder.eval_config is not None:
        config, _ = load_eval_config(folder.eval_config, workspace.root)
        if config.experiment.command is not None:
            raise ValidationError(f"rollouts/{name} runs a program", hint=f"osmosis eval run {name} --limit 1")
        entry, dataset = config.experiment.file, config.experiment.dataset
    if not (folder.path / entry).is_file():
        raise ValidationError(f"rollouts/{name}/{entry} does not exist", hint=f"osmosis check {name}")
    return AgentRef(
        name, folder.path, module=entry, dataset=workspace.local_dataset(dataset), config=config, python=python
    )


@asynccontextmanager
async def opened(ref: AgentRef, agent: Any, environ: Mapping[str, str]) -> AsyncIterator[Any]:
    if ref.mcp is None:
        yield agent
        return

    from osmosis.sdk.mcp import mcp_agent  # hosts and tool loops, which nothing else here needs

    async with mcp_agent(ref.mcp, environ=environ) as loop:
        yield loop


def continue_inside(ctx: AppContext, root: Path, rollout: str, *extras: str) -> str | None:
    """Return None when this interpreter meets the requirements of `rollouts/<rollout>`, else replace this process.

    An environment with an older generation has no such command: return its Python, which serves the entrypoint. Raise
    when the environment cannot be made.
    """
    if ctx.environ.get(INSIDE):
        return None
    label = f"rollouts/{rollout}"
    project = read_project(root / "rollouts" / rollout, label)
    lacking = [str(need) for need in project.dependencies if not satisfied(need)]
    if not lacking and not project.installable:
        return None
    ctx.output.say(f"{label} needs {', '.join(lacking[:5]) or 'to be installed'}: using its own environment")
    install_to = root / ".osmosis" / "installed" / rollout
    python, environ, is_ours = make_environment(ctx, project, install_to, extras)
    if not is_ours:
        ctx.environ = environ
        return python
    sys.stdout.flush()
    os.execve(python, [python, "-m", "osmosis", *ctx.words], environ)


def satisfied(need: Any, extra: str = "") -> bool:
    if need.marker is not None and not need.marker.evaluate({"extra": extra}):
        return True
    try:
        distribution = metadata.distribution(need.name)
    except metadata.PackageNotFoundError:
        return False
    if need.url or not need.specifier.contains(distribution.version, prereleases=True):
        return False
    inner = [Requirement(line) for line in distribution.requires or []] if need.extras else []
    return all(
        satisfied(inner_need, name)
        for name in need.extras
        for inner_need in inner
        if inner_need.marker and "extra" in str(inner_need.marker)
    )


def make_environment(
    ctx: AppContext, project: RolloutProject, install_to: Path, extras: tuple[str, ...]
) -> tuple[str, dict[str, str], bool]:
    uv = find_uv(ctx.environ)
    if uv is None:
        raise ValidationError("uv is missing; it creates the environments of rollouts", hint=install_command("uv"))
    cache = paths.cache_dir(ctx.environ)

    def say(line: LogLine) -> None:
        if not line.message.lstrip().startswith("+ "):  # one line for each of a hundred packages
            ctx.output.say(f"  {line.message}", style="dim")

    log = JobLog(None, say)
    builder = Builder(
        uv=uv,
        cache_dir=cache,
        wheel=build_wheel(cache),
        environ=dict(ctx.environ),
        log=log,
        extras=frozenset({"eval", *extras}),  # the command itself runs in there
    )
    environment = asyncio.run(builder.environment(project, commit_sha="", install_to=install_to))
    is_ours = environment.osmosis_version is not None and not environment.osmosis_version.startswith("0.")
    environ = {**ctx.environ, INSIDE: str(environment.folder)}
    if environment.project:
        old = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = os.pathsep.join([str(environment.project), *([old] if old else [])])
    return str(environment.python), environ, is_ours
