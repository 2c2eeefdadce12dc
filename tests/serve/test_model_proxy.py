"""The model proxy as client libraries and rollout servers meet it: plain and streamed calls, refusals, callbacks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.protocol.messages import CompletionCallback, GraderCallback, WireSample
from osmosis.records.run.rollout import ModelCall, Usage
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint
from support.waiting import until

from .support import SPEC, ScriptedModel, open_proxy, say

CALL = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6}'}}


class Writes:
    """Says `pieces`, one each time it is let on; then answers with `done`, or raises it."""

    def __init__(self, pieces: list[dict[str, Any]], done: Completion | ModelError) -> None:
        self.spec = SPEC
        self.pieces = pieces
        self.done = done
        self.go_on = asyncio.Semaphore(0)
        self.cut_off = False

    async def complete(self, request: ChatRequest) -> Completion:
        try:
            for delta in self.pieces:
                await self.go_on.acquire()
                request.tell(Piece(delta))
            await self.go_on.acquire()
        except asyncio.CancelledError:
            self.cut_off = True
            raise
        if isinstance(self.done, ModelError):
            raise self.done
        return self.done

    async def close(self) -> None:
        return None


class Caller:
    """A rollout that calls its model."""

    def __init__(self, proxy: ModelProxy, session: aiohttp.ClientSession) -> None:
        self.rollout = proxy.open_rollout("r1")
        self.session = session

    def post(self, **body: object) -> Any:
        return self.post_text(orjson.dumps({"messages": [{"role": "user", "content": "?"}], **body}))

    def post_text(self, body: str | bytes, url: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self.rollout.bearer}"}
        return self.session.post(url or f"{self.rollout.prefix}/chat/completions", data=body, headers=headers)

    def stream(self, **body: object) -> Any:
        return self.post(stream=True, **body)


@asynccontextmanager
async def calling(model: Any) -> AsyncIterator[Caller]:
    async with open_proxy(model) as proxy, aiohttp.ClientSession() as session:
        yield Caller(proxy, session)


async def event(reply: aiohttp.ClientResponse) -> Any:
    """The next event; None for the end."""
    line = await asyncio.wait_for(reply.content.readuntil(b"\n\n"), 10)
    data = line.removeprefix(b"data: ").strip()
    return None if data == b"[DONE]" else orjson.loads(data)


def delta_of(chunk: Any) -> Any:
    return chunk["choices"][0]["delta"]


async def test_tokens_and_logprobs_ride_along() -> None:
    model = ScriptedModel(lambda _: say("hi", token_ids=[1, 2], logprobs=[-0.1, -0.2], prompt_token_ids=[9]))
    async with calling(model) as caller:
        body = orjson.dumps({"rollout_id": "r1", "messages": [], "logprobs": True})
        async with caller.post_text(body, f"{caller.rollout.base_url}/v1/chat/completions") as reply:
            answer = await reply.json()
    assert (answer["token_ids"], answer["logprobs"], answer["prompt_token_ids"]) == ([1, 2], [-0.1, -0.2], [9])
    assert model.requests[0].params == {}


async def test_every_parameter_reaches_the_model() -> None:
    model = ScriptedModel()
    params = {"temperature": 0.5, "user": "u-1", "metadata": {"a": "b"}, "store": False, "seed": 7, "top_k": 3}
    ours = {"model": "x", "n": 1, "stream": True, "stream_options": {"include_usage": True}, "stop": None}
    async with calling(model) as caller, caller.post(**params, **ours) as reply:
        assert reply.status == 200
    assert model.requests[0].params == params


async def test_a_rollout_reaches_only_its_own_endpoint() -> None:
    async with open_proxy(ScriptedModel()) as proxy, aiohttp.ClientSession() as session:
        one, other = proxy.open_rollout("one"), proxy.open_rollout("other")
        body = {"messages": []}

        async def status(url: str, key: str) -> int:
            async with session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as reply:
                return reply.status

        chat = one.chat_completions_url + "/chat/completions"
        assert await status(chat, one.bearer) == 200
        assert await status(chat, other.bearer) == 401
        assert await status(chat, one.callback_key) == 401
        assert await status(one.grader_callback_url, one.bearer) == 401
        assert await status(f"{proxy.base_url}/v1/rollouts/none/chat/completions", one.bearer) == 404
        proxy.close_rollout(one)
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
    model = ScriptedModel()
    async with calling(model) as caller, caller.post_text(body) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["message"]
    assert model.requests == []


async def test_several_answers_to_one_call_come_back() -> None:
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate(("one", "two"))
    ]
    model = ScriptedModel(lambda _: say("one", choices=choices))
    async with calling(model) as caller, caller.post(n=2) as reply:
        answer = await reply.json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["one", "two"]
    assert model.requests[0].params == {"n": 2}


async def test_the_end_is_taken_once_and_repeats_are_acknowledged() -> None:
    async with open_proxy(ScriptedModel()) as proxy, aiohttp.ClientSession() as session:
        rollout = proxy.open_rollout("r1")
        headers = {"Authorization": f"Bearer {rollout.callback_key}"}

        async def post(url: str, message: CompletionCallback | GraderCallback) -> int:
            async with session.post(url, data=message.model_dump_json(), headers=headers) as reply:
                return reply.status

        waiting = asyncio.create_task(rollout.result(10))
        good = GraderCallback(status="success", rollout_id="r1", sample=WireSample(reward=1.0))
        done = CompletionCallback(status="success", rollout_id="r1")
        assert await post(rollout.completion_callback_url, done) == 200
        assert not waiting.done()
        assert await post(rollout.grader_callback_url, good) == 200
        assert await post(rollout.grader_callback_url, good) == 200
        assert await post(rollout.grader_callback_url, GraderCallback(status="failure", rollout_id="r1")) == 200
        ended = await waiting
        assert ended.grader == good
        proxy.close_rollout(rollout)
        assert await post(rollout.grader_callback_url, good) == 200


async def test_a_piece_arrives_while_the_model_still_writes() -> None:
    model = Writes(
        [{"content": "The "}, {"content": "answer"}], say("The answer is 42.", token_ids=[1], logprobs=[-0.5])
    )
    async with calling(model) as caller:
        model.go_on.release()
        async with caller.stream(stream_options={"include_usage": True}) as reply:
            assert delta_of(await event(reply)) == {"role": "assistant", "content": ""}
            assert delta_of(await event(reply)) == {"content": "The "}
            model.go_on.release()  # nothing more was written before this
            assert delta_of(await event(reply)) == {"content": "answer"}
            model.go_on.release()
            assert delta_of(await event(reply)) == {"content": " is 42."}  # what the pieces had left out
            last = await event(reply)
            assert last["choices"][0]["finish_reason"] == "stop"
            assert (last["token_ids"], last["logprobs"]) == ([1], [-0.5])
            assert (await event(reply))["usage"]["completion_tokens"] == 3
            assert await event(reply) is None


async def test_tool_calls_and_reasoning_come_once_each() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "six",
        "tool_calls": [CALL, {**CALL, "id": "2"}],
    }
    deltas = [{"reasoning_content": "six"}, {"tool_calls": [{"index": 0, **CALL}]}]
    model = Writes(deltas, Completion(message, "tool_calls", Usage()))
    async with calling(model) as caller:
        for _ in range(3):
            model.go_on.release()
        async with caller.stream() as reply:
            text = await reply.text()
    chunks = [orjson.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    calls = [call for chunk in chunks for call in delta_of(chunk).get("tool_calls", [])]
    arguments: dict[int, str] = {}
    for call in calls:
        arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    assert arguments == {0: '{"a": 6}', 1: '{"a": 6}'}
    assert [delta_of(chunk)["reasoning_content"] for chunk in chunks if "reasoning_content" in delta_of(chunk)] == [
        "six"
    ]


@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_failure_is_a_status_before_the_first_piece_and_an_event_after_it(pieces: int) -> None:
    failure = ModelError("the endpoint went away", category="connection")
    model = Writes([{"content": "The "}][:pieces], failure)
    async with calling(model) as caller:
        for _ in range(pieces + 1):
            model.go_on.release()
        async with caller.stream() as reply:
            assert reply.status == (200 if pieces else 424)
            text = await reply.text()
        assert "the endpoint went away" in text
        assert "[DONE]" not in text
        assert caller.rollout.model.error is failure


async def test_an_agent_that_hangs_up_ends_the_model_call() -> None:
    model = Writes([{"content": "The "}, {"content": "never"}], say("The never"))
    async with calling(model) as caller:
        model.go_on.release()
        reply = await caller.stream()
        await event(reply)
        reply.close()
        await until(lambda: model.cut_off, what="the call being cancelled")


async def test_the_observer_hears_every_answer_in_full() -> None:
    calls: list[tuple[str, str | None, list[int] | None]] = []

    class Observer:
        def opened(self, endpoint: RolloutEndpoint) -> None:
            calls.append((endpoint.rollout_id, "opened", None))

        def model_call(
            self, endpoint: RolloutEndpoint, asked: ChatRequest, call: ModelCall, done: Completion | None
        ) -> None:
            calls.append((asked.rollout_id, call.error, done.token_ids if done else None))

    answers = iter([say("hi", token_ids=[3, 4]), None])

    def reply(_: ChatRequest) -> Completion:
        answer = next(answers)
        if answer is None:
            raise ModelError("gone", category="connection")
        return answer

    async with ModelProxy(ScriptedModel(reply), observer=Observer()) as proxy, aiohttp.ClientSession() as session:
        caller = Caller(proxy, session)
        for stream in (True, False):
            async with caller.post(stream=stream) as answer:
                await answer.read()
    assert calls == [("r1", "opened", None), ("r1", None, [3, 4]), ("r1", "connection: gone", None)]
