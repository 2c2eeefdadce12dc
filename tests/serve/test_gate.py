"""The model proxy in every dialect: who calls, what a call continues, what is recorded, how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from osmosis.dialects import CHAT, DIALECTS, GEMINI, MESSAGES, RESPONSES, Call, Dialect, Envelope
from osmosis.llm import open_model
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Message, Usage
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint
from support.dialect_clients import build, read
from support.endpoint import ModelEndpoint, Reply
from support.official_types import check_request

from .support import SPEC, ScriptedModel, open_proxy, say

Json = dict[str, Any]
ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
PATHS = {
    CHAT.name: "/v1/chat/completions",
    MESSAGES.name: "/v1/messages?beta=true",
    RESPONSES.name: "/v1/responses",
    GEMINI.name: "/v1beta/models/m:generateContent",
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
ODD = '{ "place" : "caf\\u00e9",\n"n": 1.0 }'
"""Arguments as a model may spell them: no client sends them back like this."""


def calls_tool(call_id: str = "call_0") -> Completion:
    function = {"name": "look", "arguments": ODD}
    message = {
        "role": "assistant",
        "content": "I look. ",
        "reasoning_content": "Where?",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    usage = Usage(prompt_tokens=9, completion_tokens=5)
    return Completion(message=message, finish_reason="tool_calls", usage=usage, model="m")


class Gate:
    def __init__(self, proxy: ModelProxy, session: aiohttp.ClientSession) -> None:
        self.endpoint: RolloutEndpoint = proxy.open_rollout("r1")
        self.proxy = proxy
        self._session = session

    async def ask(self, dialect: Dialect, messages: list[Message], **more: Any) -> Message:
        """Return the assistant's message as a client of this dialect would store it."""
        params = more.pop("params", {})
        body = build(dialect, Call(messages, TOOLS, params, model="m"))
        status, answer = await self.post(self.endpoint.prefix + PATHS[dialect.name], body, **more)
        assert status == 200, answer
        message: Message = read(dialect, answer)["choices"][0]["message"]
        return message

    async def post(self, url: str, body: Json, headers: dict[str, str] | None = None) -> tuple[int, Json]:
        headers = {"x-api-key": self.endpoint.bearer} if headers is None else headers
        async with self._session.post(url, data=orjson.dumps(body), headers=headers) as reply:
            return reply.status, await reply.json()

    async def stream(self, dialect: Dialect, body: Json) -> bytes:
        path = PATHS[dialect.name].replace("generateContent", "streamGenerateContent?alt=sse")
        headers = {"x-api-key": self.endpoint.bearer}
        url = self.endpoint.prefix + path
        async with self._session.post(url, json={**body, "stream": True}, headers=headers) as reply:
            assert reply.status == 200
            return await reply.read()


@asynccontextmanager
async def gate(model: Any) -> AsyncIterator[Gate]:
    async with open_proxy(model) as proxy, aiohttp.ClientSession() as session:
        yield Gate(proxy, session)


@ALL
async def test_answers_come_back_as_they_were_sampled(dialect: Dialect) -> None:
    """The model sees its own message again, letter by letter, whatever its client and dialect made of it."""
    model = ScriptedModel(lambda request: calls_tool() if len(request.messages) < 5 else say("done"))
    messages: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    async with gate(model) as client:
        for _ in range(2):
            answer = await client.ask(dialect, messages)
            call_id = answer["tool_calls"][0]["id"]
            messages += [answer, {"role": "tool", "tool_call_id": call_id, "content": "x"}]
        await client.ask(dialect, messages)
        assert [call.purpose for call in client.endpoint.calls] == [None] * 3
        ids = {message["tool_calls"][0]["id"] for message in messages if message.get("tool_calls")}
    assert len(ids) == 2, "the second call_0 got an id of its own"
    last = model.requests[-1].messages
    for message in (last[2], last[4]):
        assert (message["content"], message["reasoning_content"]) == ("I look. ", "Where?")
        assert message["tool_calls"][0]["function"]["arguments"] == ODD
    assert last[: len(model.requests[1].messages)] == model.requests[1].messages


async def test_a_rewritten_answer_stays_as_the_client_wrote_it() -> None:
    model = ScriptedModel(lambda _: calls_tool())
    async with gate(model) as client:
        answer = await client.ask(MESSAGES, [{"role": "user", "content": "u"}])
        changed = {**answer, "content": "I never look."}
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "x"}
        await client.ask(MESSAGES, [{"role": "user", "content": "u"}, changed, result])
    assert model.requests[1].messages[1]["content"] == "I never look."


async def test_answers_without_handles_are_found_by_content() -> None:
    """Some clients send neither reasoning nor ids back, and spell arguments anew."""
    model = ScriptedModel(lambda _: calls_tool())
    async with gate(model) as client:
        await client.ask(CHAT, [{"role": "user", "content": "u"}])
        function = {"name": "look", "arguments": orjson.dumps(orjson.loads(ODD)).decode()}
        again = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "new", "function": function}]}
        await client.ask(CHAT, [{"role": "user", "content": "u"}, again])
    assert model.requests[1].messages[1]["tool_calls"][0]["function"]["arguments"] == ODD


async def test_of_equal_questions_only_the_continued_one_was_no_retry() -> None:
    texts = iter(["first", "second", "third", "end"])
    async with gate(ScriptedModel(lambda _: say(next(texts)))) as client:
        question: list[Message] = [{"role": "user", "content": "u"}]
        answers = [await client.ask(MESSAGES, question) for _ in range(3)]
        calls = client.endpoint.calls
        assert [call.purpose for call in calls] == ["retry", "retry", None]
        await client.ask(MESSAGES, [*question, answers[1], {"role": "user", "content": "go on"}])
        assert [call.purpose for call in calls] == ["retry", None, "retry", None]


async def test_side_calls_leave_the_conversation_alone() -> None:
    async with gate(ScriptedModel(lambda request: say(str(len(request.messages))))) as client:
        await client.ask(MESSAGES, [{"role": "user", "content": "u"}])
        await client.ask(
            MESSAGES, [{"role": "user", "content": "sub"}], headers={**KEYS(client)[1], "x-claude-code-agent-id": "a"}
        )
        assert [call.purpose for call in client.endpoint.calls] == [None, "subagent"]
        assert [message["content"] for message in client.endpoint.model.messages] == ["u", "1"]


def KEYS(client: Gate) -> list[dict[str, str]]:
    key = client.endpoint.bearer
    return [{"Authorization": f"Bearer {key}"}, {"x-api-key": key}, {"x-goog-api-key": key}]


@ALL
async def test_path_or_key_alone_tells_the_rollout(dialect: Dialect) -> None:
    async with gate(ScriptedModel()) as client:
        body = build(dialect, Call([{"role": "user", "content": "u"}], model="m"))
        for headers in KEYS(client):
            for base in (client.proxy.base_url, client.endpoint.prefix):
                assert (await client.post(base + PATHS[dialect.name], body, headers))[0] == 200
        for headers in ({}, {"x-api-key": "another"}):
            for base in (client.proxy.base_url, client.endpoint.prefix):
                status, answer = await client.post(base + PATHS[dialect.name], body, headers)
                assert (status, "bearer token" in orjson.dumps(answer).decode()) == (401, True)
        assert len(client.endpoint.calls) == 6
        client.proxy.close_rollout(client.endpoint)
        assert (await client.post(client.endpoint.prefix + PATHS[dialect.name], body))[0] == 404


async def test_the_runs_own_sampling_wins_and_is_recorded() -> None:
    model = ScriptedModel()
    model.spec = ModelSpec(name="m", kind="offline", params={"temperature": 0.7, "max_tokens": 100})
    async with gate(model) as client:
        params = {"temperature": 1.0, "top_k": 64, "top_p": 0.9, "max_tokens": 32000}
        await client.ask(MESSAGES, [{"role": "user", "content": "u"}], params=params)
        await client.ask(MESSAGES, [{"role": "user", "content": "u"}], params={"max_tokens": 10})
        assert client.endpoint.overridden == {"temperature": 1.0, "top_k": 64, "max_tokens": 32000}
    assert [request.params for request in model.requests] == [{"top_p": 0.9}, {"max_tokens": 10}]


class BreaksOff:
    """Says a word, then ends in an error that nobody expects."""

    spec = SPEC

    async def complete(self, request: ChatRequest) -> Completion:
        request.tell(Piece({"content": "Well"}))
        await asyncio.sleep(0.01)
        raise RuntimeError("a bug")

    async def close(self) -> None:
        return None


LAST_EVENT = {
    CHAT.name: b'data: {"error":',
    MESSAGES.name: b"event: error\n",
    RESPONSES.name: b"event: response.failed\n",
    GEMINI.name: b'data: {"error":',
}


@ALL
async def test_a_stream_is_never_half_closed(dialect: Dialect) -> None:
    async with gate(BreaksOff()) as client:
        data = await client.stream(dialect, build(dialect, Call([{"role": "user", "content": "u"}], model="m")))
    assert b"Well" in data
    assert data.rstrip().split(b"\n\n")[-1].startswith(LAST_EVENT[dialect.name])


async def test_a_providers_thoughts_return_to_it_through_the_gate() -> None:
    """The program speaks one dialect, the model's provider another, which gets back what it signed itself."""
    thoughts = {"messages": {"signature": "of the provider"}, "responses": {"encrypted_content": "of the provider"}}
    for provider, name in ((MESSAGES, "anthropic/m"), (RESPONSES, "openai/responses/m")):
        for dialect in (MESSAGES, RESPONSES, CHAT):

            def decide(body: Json, number: int, provider: Dialect = provider) -> Reply:
                check_request(provider, body)
                done = calls_tool(f"call_{number}")
                return Reply(provider.render(Call([]), done, Envelope("m", handle="of the provider")))

            with ModelEndpoint(decide) as endpoint:
                base_url = endpoint.url.removesuffix("/v1") if provider is MESSAGES else endpoint.url
                model = open_model(ModelSpec.parse(name, base_url=base_url))
                async with gate(model) as client:
                    answer = await client.ask(dialect, [{"role": "user", "content": "u"}])
                    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "x"}
                    await client.ask(dialect, [{"role": "user", "content": "u"}, answer, result])
                await model.close()
            second = endpoint.requests[1]
            blocks = second["messages"][1]["content"] if provider is MESSAGES else second["input"]
            thought = next(block for block in blocks if block["type"] in ("thinking", "reasoning"))
            assert thoughts[provider.name].items() <= thought.items()
