"""Waiting out a 429 is nobody's time, by whatever way a rollout reaches the model; hanging still is the agent's."""

import asyncio
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from osmosis.engine.task import Task
from osmosis.llm import open_model
from osmosis.records.run.plan import EvalPlan, ModelSpec, Timeouts
from osmosis.records.run.rollout import Category, Phase, Rollout
from osmosis.records.run.rows import Row
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.types import AgentWorkflowConfig, ConcurrencyConfig
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowContext, Grader, get_rollout_context
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint
from osmosis.serve.server.app import create_rollout_server
from support.attempts import run_attempt
from support.endpoint import ModelEndpoint, Reply
from support.rollout_run import as_agent
from support.server import running_app
from support.waiting import until

AGENT_S = 1.5
"""A loaded machine needs most of a second for a rollout that waits for nothing."""
WAIT_S = 2.0
"""Longer than the agent may take."""


class Chat(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Any:
        async with ctx.chat() as chat:
            return [*ctx.prompt, (await chat.complete(ctx.prompt)).message]


class Http(AgentWorkflow[AgentWorkflowConfig]):
    """As every vendor's client does it: over the URL, with a connection pool of its own."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Any:
        rollout = get_rollout_context()
        headers = {"Authorization": f"Bearer {rollout.api_key}"}
        body = {"model": "m", "messages": ctx.prompt}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{rollout.chat_completions_url}/chat/completions", json=body, headers=headers) as reply,
        ):
            return [*ctx.prompt, (await reply.json())["choices"][0]["message"]]


class Vendor(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Any:
        import openai

        rollout = get_rollout_context()
        async with openai.AsyncOpenAI(base_url=rollout.chat_completions_url, api_key=rollout.api_key) as client:
            done = await client.chat.completions.create(model="m", messages=cast(Any, ctx.prompt))
        return [*ctx.prompt, {"role": "assistant", "content": done.choices[0].message.content}]


class HangsAfterwards(Http):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Any:
        await super().run(ctx)
        await asyncio.Event().wait()


class Right(Grader):
    async def grade(self, ctx: Any) -> None:
        ctx.set_reward(1.0)


def slow_down(_: dict[str, Any], number: int) -> Reply | None:
    return Reply("slow down", 429, {"retry-after": str(WAIT_S)}) if number == 0 else None


async def one(workflow: type[AgentWorkflow[Any]], generation: str | None) -> Rollout:
    """One rollout against an endpoint whose first answer is 429; `generation` None = in this process."""
    backend = LocalBackend(workflow, AgentWorkflowConfig(name="w"), Right)
    task = Task(Row(index=0, data={"user_prompt": "What is 6 * 7?", "ground_truth": "42"}), 0, "r-0")
    with ModelEndpoint(slow_down) as endpoint:
        spec = ModelSpec.parse("m", base_url=endpoint.url)
        plan = EvalPlan(
            name="t", agent="a", model=spec, dataset="d", timeouts=Timeouts(agent_s=AGENT_S, score_s=AGENT_S)
        )
        model = open_model(spec, retry=plan.retry)
        gate = ModelProxy(model)
        await gate.open()
        try:
            if generation is None:
                return await run_attempt(as_agent(backend).bind(plan, endpoints=gate), model, plan, task)
            app = create_rollout_server(backend, configure_logging=False)
            async with (
                running_app(app) as url,
                served(ServerAt(url, generation=generation), gate, plan) as agent,  # type: ignore[arg-type]
            ):
                return await run_attempt(agent, model, plan, task)
        finally:
            await gate.close()
            await model.close()


PLACES = pytest.mark.parametrize("generation", [None, "0.3", "0.4"])


@PLACES
@pytest.mark.parametrize("workflow", [Chat, Http, Vendor])
async def test_a_wait_for_a_rate_limit_is_not_the_agents_time(
    workflow: type[AgentWorkflow[Any]], generation: str | None
) -> None:
    if workflow is Vendor:
        openai = pytest.importorskip("openai")
        _ = openai.AsyncOpenAI(api_key="none").chat.completions  # takes longer to load than the agent may run
    rollout = await one(workflow, generation)
    assert rollout.failure is None
    assert rollout.value("reward") == 1.0
    assert rollout.calls[0].retries == 1
    assert rollout.duration_ms < WAIT_S * 1000 < rollout.calls[0].duration_ms


@PLACES
async def test_an_agent_that_hangs_after_a_wait_still_ends_at_its_limit(generation: str | None) -> None:
    rollout = await asyncio.wait_for(one(HangsAfterwards, generation), 30)
    assert (rollout.failure.phase, rollout.failure.category) == (Phase.AGENT, Category.TIMEOUT)
    assert f"{AGENT_S:g} s" in rollout.failure.message


async def test_a_rollout_that_waits_in_the_servers_own_queue_has_its_whole_time(tmp_path: Path) -> None:
    """Somebody else's rollout holds the server's one slot for longer than the agent's limit."""
    held = asyncio.Event()

    class Holds(Chat):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Any:
            if ctx.metadata.get("hold"):
                await held.wait()
            return await super().run(ctx)

    spec = ModelSpec.parse("offline/calculator")
    backend = LocalBackend(Holds, AgentWorkflowConfig(name="w", concurrency=ConcurrencyConfig(max_concurrent=1)), Right)
    short = EvalPlan(name="t", agent="a", model=spec, dataset="d", timeouts=Timeouts(agent_s=AGENT_S, score_s=5))
    patient = short.model_copy(update={"timeouts": Timeouts(agent_s=60, score_s=5)})
    first = Task(Row(index=0, data={"user_prompt": "1 + 1?", "hold": True}), 0, "first")
    second = Task(Row(index=1, data={"user_prompt": "1 + 2?", "ground_truth": "3"}), 0, "second")
    model = open_model(spec)
    gate = ModelProxy(model)
    await gate.open()
    app = create_rollout_server(backend, configure_logging=False)
    try:
        async with (
            running_app(app) as url,
            served(ServerAt(url), gate, patient) as theirs,
            served(ServerAt(url), gate, short) as ours,
        ):
            holding = asyncio.ensure_future(run_attempt(theirs, model, patient, first))
            await until(lambda: app.state.runtime.queue.active == 1)
            waiting = asyncio.ensure_future(run_attempt(ours, model, short, second))
            await asyncio.sleep(2 * AGENT_S)
            held.set()
            assert (await waiting).failure is None
            assert (await holding).failure is None
    finally:
        await gate.close()


def test_a_state_that_is_read_again_is_no_new_stage() -> None:
    """Polls repeat it: a stage that began anew with each of them would never be old enough to be named as stuck."""
    gate = RolloutEndpoint("r", "http://127.0.0.1:9")
    told: list[str] = []
    gate.on_state = told.append
    for state in ("queued", "running", "running", "running", "grading", "grading"):
        gate.report_state(state)
    assert told == ["agent", "score"]
