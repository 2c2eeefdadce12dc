"""Simulated users: what ends a conversation, what their model costs, and that nobody is trained on what they say."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import osmosis
from osmosis.engine.agent import WorkflowAgent
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.metrics.figures import figures
from osmosis.metrics.summary import summarize
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category
from osmosis.records.run.rows import Row
from osmosis.testing.scripted import ScriptedLLM, call, says
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import SampledAnswer, SampleRequest
from osmosis.training.trainer.service import TrainerService
from support.endpoint import ModelEndpoint, Reply, text_reply

QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is my parcel?"}]


def workflow_of(user: dict[str, Any]) -> type[osmosis.AgentWorkflow[Any]]:
    class Support(osmosis.AgentWorkflow[Any]):
        async def run(self, ctx: osmosis.AgentWorkflowContext[Any]) -> list[osmosis.Message]:
            async with ctx.chat() as chat:
                return await osmosis.SimulatedUser(**user).talk(ctx.prompt, chat)

    return Support


async def talk(user: dict[str, Any], answers: list[Any], prompt: Any = QUESTION) -> tuple[Any, ScriptedLLM]:
    agent = ScriptedLLM(answers)
    init = RolloutInit(initial_messages=prompt, rollout_id="r-1", chat_completions_url="http://127.0.0.1:9/r-1")
    backend = osmosis.LocalBackend(workflow_of(user))
    return await backend.execute(init, transport=agent.respond), agent


async def test_a_script_is_spoken_word_for_word_and_then_it_is_over() -> None:
    done, agent = await talk({"script": ["It is number 17.", "Thanks."]}, [says("Number?"), says("Here."), says("Bye")])
    texts = ["Be brief.", "Where is my parcel?", "Number?", "It is number 17.", "Here.", "Thanks.", "Bye"]
    assert [message["content"] for message in done.sample.messages] == texts
    assert len(agent.questions) == 3
    assert done.sample.metrics == {}


async def test_the_person_begins_where_the_prompt_has_no_question() -> None:
    done, _ = await talk({"script": ["Hello?"]}, [says("Yes?")], QUESTION[:1])
    assert [message["role"] for message in done.sample.messages] == ["system", "user", "assistant"]


async def test_a_tool_of_the_agent_ends_it() -> None:
    script = {"script": ["a", "b", "c"], "stop_tool": "hang_up"}
    done, _ = await talk(script, [says("1"), says("2", call("hang_up", "{}"))])
    assert [message["content"] for message in done.sample.messages[2:]] == ["1", "a", "2"]


def model_at(url: str) -> dict[str, str]:
    return {"provider": "openai", "model": "person", "api_base": url, "api_key": "sk-person"}


async def test_a_model_plays_the_person_sees_no_tools_and_says_when_it_is_over() -> None:
    replies = [text_reply("Number 17."), text_reply("###STOP###")]
    with ModelEndpoint(lambda _, number: replies[number]) as endpoint:
        user = {"model": model_at(endpoint.url), "persona": "a hurried courier", "goal": "find parcel 17"}
        done, agent = await talk(user, [says("Number?", call("look_up", "{}")), says("In Rome.")])
    assert [message["content"] for message in done.sample.messages[2:]] == ["Number?", "Number 17.", "In Rome."]
    first, second = [body["messages"] for body in endpoint.requests]
    assert "a hurried courier" in first[0]["content"]
    assert "find parcel 17" in first[0]["content"]
    roles = [(message["role"], message["content"]) for message in second[2:]]
    said = ["Where is my parcel?", "Number?", "Number 17.", "In Rome."]
    assert roles == list(zip(["assistant", "user"] * 2, said, strict=True))
    assert all("tool_calls" not in message for message in second)
    assert len(agent.questions) == 2


async def test_a_model_that_cannot_be_asked_fails_the_rollout_by_name() -> None:
    with ModelEndpoint(lambda *_: Reply({"error": {"message": "no such key sk-person"}}, 401)) as endpoint:
        done, _ = await talk({"model": model_at(endpoint.url)}, [says("Number?")])
    assert done.failure is not None
    assert done.failure.category is Category.AUTH
    assert "the simulated user's model openai/person" in done.failure.message
    assert "sk-person" not in done.failure.message


def test_neither_a_model_nor_a_script_is_nobody() -> None:
    with pytest.raises(ValueError, match="a model, a script, or both"):
        osmosis.SimulatedUser()
    with pytest.raises(TypeError, match="list of turns"):
        osmosis.SimulatedUser(script="hello")


class Sampler:
    """Answers `agent`, with a token for each character of the conversation."""

    def __init__(self) -> None:
        self.requests: list[SampleRequest] = []

    async def stream(self, request: SampleRequest) -> AsyncGenerator[SampledAnswer, None]:
        self.requests.append(request)
        tokens = [ord(character) for message in request.messages for character in message["content"]]
        answer = [ord(character) for character in "agent"]
        yield SampledAnswer(
            prompt_ids=tokens, token_ids=answer, logprobs=[-0.5] * 5, content="agent", finish_reason="stop",
            parse="content",
        )  # fmt: skip


async def test_the_person_is_counted_apart_and_never_trained(tmp_path: Path) -> None:
    plan = EvalPlan(name="t", agent="x", model=ModelSpec.parse("osmosis/x"), dataset="d.jsonl")
    user = {"model": "offline/echo", "script": ["first"], "max_turns": 3}
    agent = WorkflowAgent(osmosis.LocalBackend(workflow_of(user)), plan)
    task = Task(Row(index=0, data={"user_prompt": "question", "ground_truth": "x"}), 0, "r-1")
    sampler = Sampler()
    with TrainerService("x", tmp_path / "s.sock") as service:
        service.sampler = sampler
        async with TrainerClient(tmp_path / "s.sock") as link:
            trained = TrainedModel(link, "x")
            trained.start("r-1", "train-000001")
            rollout = await agent.run(task, RolloutModel(trained, task, plan))
            conversation = trained.take("r-1")
    (part,) = conversation.parts
    text = "".join(map(chr, part.token_ids))
    assert text == "questionagentfirstagentagentagentagentagent", "an echo of the agent says agent, too"
    trained_on = [place for place, mask in enumerate(part.mask, part.prompt_length) if mask]
    assert trained_on == [*range(8, 13), *range(18, 23), *range(28, 33), *range(38, 43)]
    assert len(sampler.requests) == len(rollout.calls) == 4, "the person's model was asked through the gate"
    assert rollout.user_usage is not None
    assert rollout.user_usage.completion_tokens > 0
    report = summarize([rollout], plan)
    assert report.user_usage.total_tokens == rollout.user_usage.total_tokens
    assert report.usage == rollout.usage
    assert report.spent().tokens == rollout.usage.total_tokens + rollout.user_usage.total_tokens
    shown = {figure.name: figure for figure in figures(report)}
    assert shown["user_tokens"].value == rollout.user_usage.total_tokens
    assert "for simulated users" in shown["cost_usd"].detail
