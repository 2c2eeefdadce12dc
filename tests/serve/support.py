"""Agents, models and plans of the serve tests: small and real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from osmosis.compat.server import LoopServerSettings, build_loop_server
from osmosis.engine.task import Task
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Usage
from osmosis.records.run.rows import Row
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.types import AgentWorkflowConfig, ConcurrencyConfig
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowContext, AgentWorkflowOutput, Grader, GraderContext
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.server.app import Backend, create_rollout_server

SPEC = ModelSpec(name="scripted/model", kind="offline")


class ScriptedModel:
    """Answers with what `reply` makes of the request; raises what it raises."""

    def __init__(self, reply: Callable[[ChatRequest], Completion] | None = None) -> None:
        self.spec = SPEC
        self.requests: list[ChatRequest] = []
        self._reply = reply or (lambda request: say("42"))

    async def complete(self, request: ChatRequest) -> Completion:
        self.requests.append(request)
        return self._reply(request)

    async def close(self) -> None:
        return None


def say(text: str, **more: Any) -> Completion:
    usage = Usage(prompt_tokens=7, completion_tokens=3)
    return Completion(
        message={"role": "assistant", "content": text},
        finish_reason="stop",
        usage=usage,
        model="scripted/model",
        **more,
    )


def fail(category: str) -> Callable[[ChatRequest], Completion]:
    def reply(_: ChatRequest) -> Completion:
        raise ModelError(f"the endpoint said {category}", category=category)

    return reply


class OneCall(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the model once and returns the conversation."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        async with ctx.chat(max_attempts=1) as chat:
            done = await chat.complete(ctx.prompt, temperature=0.5)
        return AgentWorkflowOutput(messages=[*ctx.prompt, done.message], metrics={"turns": 1.0}, info={"note": "done"})


class Crashes(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        raise RuntimeError("the tool shed burned down")


class Hangs(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        await asyncio.Event().wait()
        raise AssertionError


class Exact(Grader):
    """1.0 when the last message is the label."""

    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)


class Explains(Grader):
    """Says why, and what the reward is made of."""

    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(0.75, reason="right, but rude", parts={"right": 1.0, "polite": 0.5})


class BrokenGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        raise ValueError("the answer key is torn")


class NotANumber(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(float("nan"))


def config(limit: int | None = None) -> AgentWorkflowConfig:
    return AgentWorkflowConfig(name="test", concurrency=ConcurrencyConfig(max_concurrent=limit))


def backend(workflow: type, grader: type | None = Exact, *, limit: int | None = None, root: Path) -> LocalBackend:
    environ = {"_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(root)}
    return LocalBackend(workflow, config(limit), grader, environ=environ)


def server(on: Backend, folder: Path, **more: Any) -> FastAPI:
    return create_rollout_server(on, configure_logging=False, environ={}, spool_dir=folder / "spool", **more)


def plan(**more: Any) -> EvalPlan:
    return EvalPlan(name="test", agent="server:local", model=SPEC, dataset="rows.jsonl", **more)


def task(index: int = 0, attempt: int = 0, truth: str = "42", **columns: Any) -> Task:
    data = {"system_prompt": "Be brief.", "user_prompt": "6 * 7?", "ground_truth": truth, **columns}
    return Task(row=Row(index=index, data=data), attempt=attempt, rollout_id=f"test-{index}-{attempt}")


def loop_app(loop: RolloutAgentLoop, folder: Path, **more: Any) -> FastAPI:
    settings = LoopServerSettings(**{"environ": {}, "spool_dir": folder / "spool", **more})
    return build_loop_server(loop, settings)


@asynccontextmanager
async def open_proxy(model: ScriptedModel) -> AsyncIterator[ModelProxy]:
    async with ModelProxy(model) as proxy:
        yield proxy
