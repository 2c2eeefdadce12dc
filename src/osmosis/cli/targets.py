"""Runs, rows and agents by name: a local run first (name, path, prefix, `latest`), else the platform's."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis.cli.core.context import AppContext
from osmosis.cli.core.rollout_environment import continue_inside
from osmosis.engine.journal import Journal
from osmosis.errors import NotFound, OsmosisError, UsageError, ValidationError, WorkspaceRequired
from osmosis.local.run_options import run_folder
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.rows import place_key
from osmosis.sdk.mcp import mcp_agent
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import find_workspace, pick_rollout

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

PLATFORM = "platform:"
T = TypeVar("T")


class RunFinder:
    def __init__(self, ctx: AppContext) -> None:
        self._ctx = ctx
        self.cwd = ctx.cwd
        self._client: PlatformClient | None = None

    def __enter__(self) -> "RunFinder":
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    def find(
        self, name: str, *, of_folder: Callable[[Path], T], of_platform: "Callable[[PlatformClient, str], T]"
    ) -> T:
        if name.startswith(PLATFORM):
            return of_platform(self._platform(), name.removeprefix(PLATFORM))
        try:
            folder = run_folder(name, self._ctx.cwd)
        except NotFound as here:
            try:
                client = self._platform()
                client.evals.get(name)
            except NotFound as there:
                message = f"{here.message}, nor an evaluation of that name on the platform"
                raise NotFound(message, hint=f"{here.hint}, or one of: osmosis eval list") from there
            except OsmosisError as silent:  # not logged in, no workspace, nobody answers
                message = f"{here.message}; nor could the platform be asked: {silent.message}"
                raise NotFound(message, hint=silent.hint or here.hint) from silent
            return of_platform(client, name)
        return of_folder(folder)

    def on_platform(self, name: str) -> bool:
        try:
            return bool(self._platform().evals.get(name).run.name == name)
        except OsmosisError:
            return False

    def _platform(self) -> "PlatformClient":
        if self._client is None:
            self._client = self._ctx.client()
        return self._client


@dataclass(frozen=True)
class RowName:
    key: str
    dataset: str = ""
    """Name of the dataset; empty when only the row's key was given."""


def row_named(text: str, cwd: Path) -> RowName:
    name, _, index = text.rpartition(":")
    if not (name and index.isdigit()):
        return RowName(text)
    try:
        journal = Journal(run_folder(name, cwd))
    except NotFound:
        return RowName(text)
    for outcome in journal.rollouts():
        if outcome.row_index == int(index):
            return RowName(outcome.row_key or place_key(outcome.row_index), Path(journal.plan().dataset).stem)
    raise NotFound(f"run {journal.folder.name} has no rollout of row {index}", hint=f"osmosis eval show {name}")


@dataclass(frozen=True)
class AgentRef:
    label: str
    base_dir: Path
    module: str | None = None
    mcp: str | None = None
    dataset: Path | None = None
    config: EvalConfig | None = None
    python: str | None = None
    """Of an older generation: it starts the entrypoint as a server."""


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

    async with mcp_agent(ref.mcp, environ=environ) as loop:
        yield loop
