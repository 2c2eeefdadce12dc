import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.engine.agent import Agent, LoopAgent
from osmosis.engine.load_agent import LoadedAgent, agent_of, load_agent, load_grading
from osmosis.engine.provenance import folder_files
from osmosis.errors import ValidationError
from osmosis.llm import Model
from osmosis.local.run_options import RunOptions, server_key
from osmosis.records.run.plan import EvalPlan
from osmosis.sdk.score_functions import bounds_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutSource:
    kind: str
    """`module`, `mcp`, `server`, `entrypoint` or `command`."""
    target: str
    environ: Mapping[str, str] = field(repr=False)
    agent: LoadedAgent | None = None
    files: tuple[Path, ...] = ()
    server_key: str | None = field(default=None, repr=False)
    base_dir: Path = Path()
    python: str = ""
    """The one that starts an `entrypoint`."""

    @property
    def brings_reward(self) -> bool:
        return self.kind in ("server", "entrypoint") or (self.agent is not None and self.agent.graded)

    @property
    def reward_bounds(self) -> tuple[float, float] | None:
        return bounds_of(self.agent.backend.grader) if self.agent is not None and self.agent.backend else None

    @asynccontextmanager
    async def open(self, plan: EvalPlan, model: Model) -> AsyncIterator[Agent]:
        if self.kind == "mcp":
            from osmosis.sdk.mcp import mcp_agent  # hosts and tool loops: only an MCP folder or URL needs them

            async with mcp_agent(self.target, environ=self.environ, timeout_s=plan.timeouts.tool_s) as loop:
                yield LoopAgent(loop, plan)
        elif self.agent is not None and self.agent.loop is not None:
            yield self.agent.bind(plan)
        else:
            # A third of a second: most of the start of an agent loop, which needs no web framework.
            from osmosis.serve.client.remote import ModelProxy, ServerAt, check_key, served, started

            async with ModelProxy(model) as proxy:
                if self.kind == "command":
                    # Sandboxes and harnesses: only a command needs them.
                    from osmosis.serve.client.program_agent import GradedProgram, ProgramAgent

                    program = ProgramAgent(plan, proxy, self.base_dir, self.environ)
                    yield program if self.agent is None else GradedProgram(program, self.agent.bind(plan))
                    return
                if self.agent is not None:
                    yield self.agent.bind(plan, endpoints=proxy)
                    return
                if self.kind == "entrypoint":
                    async with (
                        started(self.python, Path(self.target), self.environ, log=log.info) as server,
                        served(ServerAt(server.url), proxy, plan, died=server.wait_died) as agent,
                    ):
                        yield agent
                    return
                await check_key(self.target, self.server_key)
                async with served(ServerAt(self.target, self.server_key), proxy, plan) as agent:
                    yield agent


def load_source(plan: EvalPlan, options: RunOptions) -> RolloutSource:
    base_dir, environ = options.base_dir, options.environ
    if options.agent is not None:
        agent = agent_of(options.agent, plan.agent, base_dir, grader=options.grader)
        return RolloutSource("module", plan.agent, environ, agent, tuple(agent.files))
    kind, target = agent_kind(plan.agent)
    if kind == "server":
        return RolloutSource(kind, target, environ, server_key=server_key(options.server_key_env, environ))
    if kind == "command":
        folders = plan.program.folders(base_dir).values()
        files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
        grading = load_grading(plan.program.grader, base_dir) if plan.program.grader else None
        files += grading.files if grading is not None else []
        return RolloutSource(kind, target, environ, grading, tuple(files), base_dir=base_dir)
    if kind == "module" and options.server_python:
        entry = base_dir / target
        files = sorted(entry.parent.rglob("*.py"))
        return RolloutSource("entrypoint", str(entry), environ, files=tuple(files), python=options.server_python)
    if kind == "module":
        agent = load_agent(target, base_dir, grader=options.grader)
        return RolloutSource(kind, target, environ, agent, tuple(agent.files))
    if "://" in target:
        return RolloutSource(kind, target, environ)
    folder = base_dir / target
    if not folder.exists():
        raise ValidationError(f"there is no MCP folder {folder}", hint="--mcp DIR or URL")
    return RolloutSource(kind, str(folder), environ, files=tuple(folder_files(folder) if folder.is_dir() else [folder]))


def agent_kind(agent: str) -> tuple[str, str]:
    kind, _, target = agent.partition(":")
    if kind == "server" and target.startswith(("http://", "https://")):
        return kind, target
    if (kind == "mcp" and "/" in target) or (kind == "command" and target):
        return kind, target
    return "module", agent
