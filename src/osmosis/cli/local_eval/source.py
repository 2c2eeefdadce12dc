"""Where a local run's rollouts come from: an agent in this process, MCP tools, or a rollout server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.identity import folder_files
from ...engine.task import RolloutFn
from ...errors import ValidationError
from ...llm import Model
from ...records.plan import EvalPlan
from .plan import agent_kind

if TYPE_CHECKING:
    from ...engine.agent import Agent


@dataclass(slots=True)
class Source:
    """What a plan's `agent` names."""

    kind: str
    """`module`, `mcp` or `server`."""
    target: str
    base_dir: Path
    environ: Mapping[str, str]
    agent: Agent | None = None
    """The loaded agent of a module."""
    server_key: str | None = field(default=None, repr=False)


def load_source(
    agent: str, base_dir: Path, environ: Mapping[str, str], *, grader: str | None = None
) -> tuple[Source, list[Path]]:
    """The source, and the files of code it is made of as far as they are here."""
    kind, target = agent_kind(agent)
    source = Source(kind, target, base_dir, environ)
    if kind == "module":
        from ...engine.agent import load_agent

        source.agent = load_agent(agent, base_dir, grader=grader)
        return source, source.agent.files
    if "://" in target:
        return source, []
    folder = base_dir / target
    if not folder.exists():
        raise ValidationError(f"there is no MCP folder {folder}", hint="--mcp DIR or URL")
    return source, folder_files(folder) if folder.is_dir() else [folder]


@asynccontextmanager
async def rollouts(source: Source, plan: EvalPlan, model: Model) -> AsyncIterator[RolloutFn]:
    """The `RolloutFn` of this source."""
    from ...engine.rollout import in_process

    if source.kind == "mcp":
        from ...sdk.mcp import mcp_agent

        place = source.target if "://" in source.target else str(source.base_dir / source.target)
        async with (
            mcp_agent(place, environ=source.environ, timeout_s=plan.timeouts.tool_s) as loop,
            in_process(loop, model, plan) as rollout_fn,
        ):
            yield rollout_fn
    elif source.agent is not None and source.agent.loop is not None:
        async with in_process(source.agent, model, plan) as rollout_fn:
            yield rollout_fn
    else:
        async with _gated(source, plan, model) as rollout_fn:
            yield rollout_fn


@asynccontextmanager
async def _gated(source: Source, plan: EvalPlan, model: Model) -> AsyncIterator[RolloutFn]:
    """A workflow here or a rollout server elsewhere: both may call the model over HTTP."""
    from ...engine.rollout import in_process
    from ...serve.drive.traingate import TrainGate

    gate = TrainGate(model)
    await gate.start()
    try:
        if source.agent is not None:
            async with in_process(source.agent, model, plan, endpoints=gate) as rollout_fn:
                yield rollout_fn
        else:
            from ...serve.drive.client import check_key, served

            await check_key(source.target, source.server_key)
            async with served(source.target, gate, plan, api_key=source.server_key) as rollout_fn:
                yield rollout_fn
    finally:
        await gate.stop()
