"""The model proxy as client libraries and rollout servers meet it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from osmosis.records.wire import CompletionCallback, GraderCallback
from osmosis.records.wire_sample import WireSample

from .support import ScriptedModel, open_gate, say


async def test_tokens_and_logprobs_ride_along() -> None:
    model = ScriptedModel(lambda _: say("hi", token_ids=[1, 2], logprobs=[-0.1, -0.2], prompt_token_ids=[9]))
    async with open_gate(model) as gate, aiohttp.ClientSession() as session:
        rollout = gate.open_rollout("r1")
        body = {"rollout_id": "r1", "messages": [{"role": "user", "content": "?"}], "logprobs": True}
        headers = {"Authorization": f"Bearer {rollout.bearer}"}
        async with session.post(f"{gate.base_url}/v1/chat/completions", json=body, headers=headers) as reply:
            answer = await reply.json()
    assert (answer["token_ids"], answer["logprobs"], answer["prompt_token_ids"]) == ([1, 2], [-0.1, -0.2], [9])
    assert model.requests[0].params == {}


async def test_every_parameter_reaches_the_model() -> None:
    model = ScriptedModel()
    asked = {"temperature": 0.5, "user": "u-1", "metadata": {"a": "b"}, "store": False, "seed": 7, "top_k": 3}
    ours = {"model": "x", "n": 1, "stream": True, "stream_options": {"include_usage": True}, "stop": None}
    async with open_gate(model) as gate, aiohttp.ClientSession() as session:
        rollout = gate.open_rollout("r1")
        headers = {"Authorization": f"Bearer {rollout.bearer}"}
        body = {"messages": [], **asked, **ours}
        async with session.post(rollout.prefix + "/chat/completions", json=body, headers=headers) as reply:
            assert reply.status == 200
    assert model.requests[0].params == asked


async def test_a_rollout_reaches_only_its_own_endpoint() -> None:
    async with open_gate(ScriptedModel()) as gate, aiohttp.ClientSession() as session:
        one, other = gate.open_rollout("one"), gate.open_rollout("other")
        body = {"messages": []}

        async def status(url: str, key: str) -> int:
            async with session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as reply:
                return reply.status

        chat = one.chat_completions_url + "/chat/completions"
        assert await status(chat, one.bearer) == 200
        assert await status(chat, other.bearer) == 401
        assert await status(chat, one.callback_key) == 401
        assert await status(one.grader_callback_url, one.bearer) == 401
        assert await status(f"{gate.base_url}/v1/rollouts/none/chat/completions", one.bearer) == 404
        gate.close_rollout(one)
        assert await status(chat, one.bearer) == 404


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '{"messages": 1}',
        '{"messages": [], "n": 0}',
        '{"messages": [], "n": "two"}',
        '{"messages": [], "n": 2, "stream": true}',
        '{"messages": ["x"]}',
        '{"messages": [], "api_base": "http://elsewhere"}',
    ],
)
async def test_what_cannot_be_forwarded_is_refused(body: str) -> None:
    async with open_gate(ScriptedModel()) as gate, aiohttp.ClientSession() as session:
        rollout = gate.open_rollout("r1")
        headers = {"Authorization": f"Bearer {rollout.bearer}"}
        async with session.post(rollout.prefix + "/chat/completions", data=body, headers=headers) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["message"]
    assert gate.model.requests == []


async def test_several_answers_to_one_call_come_back() -> None:
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate(("one", "two"))
    ]
    model = ScriptedModel(lambda _: say("one", choices=choices))
    async with open_gate(model) as gate, aiohttp.ClientSession() as session:
        rollout = gate.open_rollout("r1")
        headers = {"Authorization": f"Bearer {rollout.bearer}"}
        body = {"messages": [], "n": 2}
        async with session.post(rollout.prefix + "/chat/completions", json=body, headers=headers) as reply:
            answer = await reply.json()
    assert [one["message"]["content"] for one in answer["choices"]] == ["one", "two"]
    assert model.requests[0].params == {"n": 2}


async def test_the_end_is_taken_once_and_repeats_are_acknowledged() -> None:
    async with open_gate(ScriptedModel()) as gate, aiohttp.ClientSession() as session:
        rollout = gate.open_rollout("r1")
        headers = {"Authorization": f"Bearer {rollout.callback_key}"}

        async def post(url: str, message: CompletionCallback | GraderCallback) -> int:
            async with session.post(url, data=message.model_dump_json(), headers=headers) as reply:
                return reply.status

        waiting = asyncio.create_task(rollout.result(10))
        good = GraderCallback(status="success", rollout_id="r1", sample=WireSample(reward=1.0))
        done = CompletionCallback(status="success", rollout_id="r1")
        assert await post(rollout.completion_callback_url, done) == 200
        assert not rollout.is_done
        assert await post(rollout.grader_callback_url, good) == 200
        assert await post(rollout.grader_callback_url, good) == 200
        assert await post(rollout.grader_callback_url, GraderCallback(status="failure", rollout_id="r1")) == 200
        ended = await waiting
        assert ended.grader == good
        assert (rollout.repeats, rollout.contradictions) == (2, 1)
        gate.close_rollout(rollout)
        assert await post(rollout.grader_callback_url, good) == 200
