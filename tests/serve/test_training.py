"""Rollout servers of every generation, unmodified, under training: tools, tokens, masks, rewards, through the proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from osmosis.llm.model import ChatRequest, Piece
from osmosis.records.protocol.v02 import OpenAIFunctionToolSchema, RolloutRequest
from osmosis.records.run.rollout import Message
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.types import AgentWorkflowConfig
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowContext, AgentWorkflowOutput, Grader, GraderContext
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.protocols import Generation
from osmosis.serve.client.remote import ServerAt, served
from osmosis.testing.scripted import call, says
from osmosis.training.driver import TrainingDriver
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import SampleRequest, Sequence
from osmosis.training.protocol.plans import TrainerPlan
from support.fake_trainer import END, FakeTrainer
from support.server import running_app
from support.training_desk import RecordingListener, TwoTurns, plan_of, run_of
from support.waiting import until

from .support import backend, loop_app, server

TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}}


def policy(request: SampleRequest, updates: int) -> Message | str:
    """Calls the tool, then answers, rightly every second time."""
    assert request.tools, "the tools of the rollout did not reach the trainer"
    if request.messages[-1]["role"] != "tool":
        return says("hm", call("look_up", '{"row":1}'))
    return "right" if (request.seed or 0) % 2 else "wrong"


def reward(messages: list[Message]) -> float:
    return 1.0 if messages[-1]["content"] == "right" else 0.0


class Looks(AgentWorkflow[AgentWorkflowConfig]):
    """Generations 0.3 and 0.4."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        messages = list(ctx.prompt)
        async with ctx.chat(max_attempts=1) as chat:
            while True:
                done = await chat.complete(messages, tools=[TOOL], temperature=0.0)
                messages.append(done.message)
                if not done.tool_calls:
                    return AgentWorkflowOutput(messages=messages)
                messages.append({"role": "tool", "tool_call_id": done.tool_calls[0]["id"], "content": "found"})


class Judges(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(reward(ctx.sample.messages))


class LooksToo(RolloutAgentLoop):
    """Generation 0.2: the reward comes with the callback."""

    name = "looks"

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        return [OpenAIFunctionToolSchema.model_validate(TOOL)]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        while True:
            done = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(done.message)
            if not done.has_tool_calls:
                return ctx.complete(messages, done.finish_reason, reward=reward(messages))
            messages.append({"role": "tool", "tool_call_id": done.tool_calls[0]["id"], "content": "found"})


def app_of(generation: Generation, folder: Path) -> ASGIApp:
    if generation == "0.2":
        return loop_app(LooksToo(), folder)
    return server(backend(Looks, Judges, root=folder), folder)


@asynccontextmanager
async def linked(folder: Path, plan: TrainerPlan) -> AsyncIterator[tuple[FakeTrainer, TrainerClient, TrainedModel]]:
    with FakeTrainer(plan, folder / "t.sock", policy=policy) as trainer:
        async with TrainerClient(folder / "t.sock") as link:
            yield trainer, link, TrainedModel(link, "base", seed=3)


def by_mask(one: Sequence, mask: int) -> str:
    rest = one.token_ids[one.prompt_length :]
    return "".join(chr(token) for token, said in zip(rest, one.mask, strict=True) if said == mask)


@pytest.mark.parametrize("generation", ["0.2", "0.3", "0.4"])
async def test_a_server_of_every_generation_trains_unmodified(tmp_path: Path, generation: Generation) -> None:
    listener = RecordingListener()
    run = run_of(tmp_path, listener)
    async with (
        linked(tmp_path, plan_of(tmp_path, steps=2)) as (trainer, link, model),
        running_app(app_of(generation, tmp_path)) as url,
    ):
        gate = ModelProxy(model, observer=model)
        await gate.open()
        async with served(ServerAt(url, generation=generation), gate, run.plan) as rollout:
            done = await asyncio.wait_for(TrainingDriver(run, link, model, rollout).run(), 60)
        await gate.close()
    assert done.step == 2
    train = [batch for batch in trainer.batches if batch.kind == "train"]
    assert [len(batch.sequences) for batch in train] == [8, 8]
    for one in (one for batch in train for one in batch.sequences):
        assert by_mask(one, 0) == f"<tool>found{END}<assistant>"
        said = by_mask(one, 1)
        assert said.startswith("hm<tool_call>look_up")
        assert one.reward == (1.0 if said.endswith(f"right{END}") else 0.0)
        assert one.part == 0
    assert {one.reward for batch in train for one in batch.sequences} == {0.0, 1.0}
    found = {(point.key, point.step): point.value for point in listener.metrics}
    assert found["rollout/turns", 1] == 2.0
    assert all(len(rollout.calls) == 2 for rollout in listener.rollouts)


async def test_what_a_rollout_may_decide_of_sampling_and_what_not(tmp_path: Path) -> None:
    async with linked(tmp_path, plan_of(tmp_path, validation_rows=[])) as (trainer, _, model):
        params = {"temperature": 0.0, "max_tokens": 7, "stop": "x", "seed": 1, "tool_choice": "auto", "min_p": 0.1}
        await until(lambda: trainer.service.sampler is not None)
        request = ChatRequest([{"role": "user", "content": "?"}], [TOOL], params, "r", 4, 1)
        done = await model.complete(request)
        again = await model.complete(ChatRequest(request.messages, [TOOL], {}, "r2", 4, 1))
        asked, repeated = trainer.sampler.requests
    assert (asked.temperature, asked.max_tokens, asked.stop) == (None, 7, ["x"])
    assert asked.seed == repeated.seed, "the same question at the same place has the same seed"
    assert model.ignored == {"temperature", "min_p"}
    assert (done.token_ids, done.prompt_token_ids) == (again.token_ids[:7], again.prompt_token_ids)


async def test_a_stream_of_the_trained_model_is_told_while_it_is_sampled(tmp_path: Path) -> None:
    async with linked(tmp_path, plan_of(tmp_path, validation_rows=[])) as (trainer, _, model):
        await until(lambda: trainer.service.sampler is not None)
        told: list[Piece] = []
        history = [{"role": "user", "content": "?"}, says("hm"), {"role": "tool", "content": "found"}]
        request = ChatRequest(history, [TOOL], {}, "r", on_piece=told.append)
        done = await model.complete(request)
    assert len(told) == len(done.message["content"])
    assert "".join(piece.delta["content"] for piece in told) == done.message["content"]


async def test_a_rollout_that_begins_anew_has_said_nothing(tmp_path: Path) -> None:
    async with linked(tmp_path, plan_of(tmp_path, validation_rows=[])) as (trainer, _, model):
        await until(lambda: trainer.service.sampler is not None)
        gate = ModelProxy(model, observer=model)
        model.start("r", "train-000001")
        for _ in range(2):  # its server died and was started again
            endpoint = gate.open_rollout("r")
            await model.complete(ChatRequest([{"role": "user", "content": "?"}], [TOOL], {}, "r"))
            gate.close_rollout(endpoint)
        assert len(model.take("r").parts) == 1
        assert model.take("r").parts == []


async def test_a_lost_trainer_stores_no_failure(tmp_path: Path) -> None:
    """What fails because the trainer is gone is run again: it must not count as a failed rollout."""
    plan = plan_of(tmp_path, validation_rows=[])
    listener = RecordingListener()
    gate = asyncio.Event()
    async with linked(tmp_path, plan) as (trainer, link, model):
        agent = TwoTurns(model, gate=gate)
        going = asyncio.create_task(TrainingDriver(run_of(tmp_path, listener), link, model, agent).run())
        await until(lambda: len(agent.runs) == 8)
        trainer.service.__exit__()  # as if it were killed
        gate.set()
        with pytest.raises(Exception, match="trainer"):
            await asyncio.wait_for(going, 20)
    assert listener.rollouts == []
