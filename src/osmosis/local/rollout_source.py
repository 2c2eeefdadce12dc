"""Where a local run's rollouts come from: an agent in this process, MCP tools, or a rollout server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path

from osmosis.base.light_dataclass import dataclass
from osmosis.engine.agent import Agent, agent_of, load_agent
from osmosis.engine.identity import folder_files
from osmosis.engine.in_process import in_process
from osmosis.engine.task import RolloutFn
from osmosis.errors import ValidationError
from osmosis.llm import Model
from osmosis.records.plan import EvalPlan
from osmosis.serve.deferred import apps_deferred
from osmosis.serve.drive.on_demand import GateOnDemand

from .request import Request, server_key


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """What a plan's `agent` names, loaded as far as it is here."""

    kind: str
    """`module`, `mcp` or `server`."""
    target: str
    """The agent's name, a folder or a URL."""
    environ: Mapping[str, str] = field(repr=False)
    agent: Agent | None = None
    files: tuple[Path, ...] = ()
    """The code it is made of, as far as it is the user's own and here."""
    server_key: str | None = field(default=None, repr=False)

    @property
    def brings_reward(self) -> bool:
        """Whether rollouts come with a reward of their own."""
        return self.kind == "server" or (self.agent is not None and self.agent.graded)

    @asynccontextmanager
    async def rollouts(self, plan: EvalPlan, model: Model) -> AsyncIterator[RolloutFn]:
        """The `RolloutFn` of this source against `model`, while the block lasts."""
        if self.kind == "mcp":
            from osmosis.sdk.mcp import mcp_agent  # hosts and tool loops: only an MCP folder or URL needs them

            async with (
                mcp_agent(self.target, environ=self.environ, timeout_s=plan.timeouts.tool_s) as loop,
                in_process(loop, model, plan) as rollout_fn,
            ):
                yield rollout_fn
        elif self.agent is not None and self.agent.loop is not None:
            async with in_process(self.agent, model, plan) as rollout_fn:
                yield rollout_fn
        elif self.agent is not None:
            async with (
                GateOnDemand(model) as gate,
                in_process(self.agent, model, plan, endpoints=gate) as rollout_fn,
            ):
                yield rollout_fn
        else:
            async with _through_gate(self, plan, model) as rollout_fn:
                yield rollout_fn


def load_source(request: Request) -> RolloutSource:
    """The source of a request. Raises what loading raises, and ValidationError for a folder or key that is missing."""
    base_dir, environ = request.base_dir, request.environ
    if request.agent is not None:
        agent = agent_of(request.agent, request.plan.agent, base_dir, grader=request.grader)
        return RolloutSource("module", request.plan.agent, environ, agent, tuple(agent.files))
    kind, target = agent_kind(request.plan.agent)
    if kind == "server":
        return RolloutSource(kind, target, environ, server_key=server_key(request.server_key_env, environ))
    if kind == "module":
        with apps_deferred():  # its agent runs here: a server that its module makes for others is not wanted
            agent = load_agent(target, base_dir, grader=request.grader)
        return RolloutSource(kind, target, environ, agent, tuple(agent.files))
    if "://" in target:
        return RolloutSource(kind, target, environ)
    folder = base_dir / target
    if not folder.exists():
        raise ValidationError(f"there is no MCP folder {folder}", hint="--mcp DIR or URL")
    return RolloutSource(kind, str(folder), environ, files=tuple(folder_files(folder) if folder.is_dir() else [folder]))


def agent_kind(agent: str) -> tuple[str, str]:
    """What a plan's agent is (`server`, `mcp` or `module`) and where.

    A module may be called `server` or `mcp`: only what follows, a URL or a path, makes it something else.
    """
    kind, _, target = agent.partition(":")
    if kind == "server" and target.startswith(("http://", "https://")):
        return kind, target
    if kind == "mcp" and "/" in target:
        return kind, target
    return "module", agent


@asynccontextmanager
async def _through_gate(source: RolloutSource, plan: EvalPlan, model: Model) -> AsyncIterator[RolloutFn]:
    """A rollout server elsewhere, whose rollouts call the model over HTTP."""
    # What runs here needs no HTTP server: it is most of what there would be to import.
    from osmosis.serve.drive import client, traingate

    gate = traingate.TrainGate(model)
    await gate.start()
    try:
        await client.check_key(source.target, source.server_key)
        async with client.served(source.target, gate, plan, api_key=source.server_key) as rollout_fn:
            yield rollout_fn
    finally:
        await gate.stop()
