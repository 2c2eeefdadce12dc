"""The endpoint of one model, as OpenAI clients meet it: plain, streamed, refused, cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from osmosis.llm.model import ChatRequest, Completion, Model, Piece
from osmosis.serve.client.model_http import InferenceEndpoint

from .support import SPEC, ScriptedModel, fail, say

KEY = {"Authorization": "Bearer the-key"}
ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "?"}]}


@asynccontextmanager
async def opened(model: Model, time_limit_s: float = 30.0) -> AsyncIterator[tuple[InferenceEndpoint, str]]:
    endpoint = InferenceEndpoint(model, name="tiny", key="the-key", time_limit_s=time_limit_s)
    url = await endpoint.open()
    try:
        yield endpoint, url
    finally:
        await endpoint.close()


async def post(url: str, body: object, headers: dict[str, str] = KEY) -> tuple[int, dict[str, Any], dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/chat/completions", data=orjson.dumps(body), headers=headers) as answer,
    ):
        return answer.status, await answer.json(), dict(answer.headers)


async def test_a_question_is_answered_and_counted() -> None:
    model = ScriptedModel(lambda _: say("42", token_ids=[1], logprobs=[-0.5]))
    async with opened(model) as (endpoint, url):
        status, body, _ = await post(url, {**ASKED, "temperature": 0.5, "user": "u", "n": 1, "stop": ["x"]})
        with_tokens = (await post(url, {**ASKED, "logprobs": True}))[1]
        assert endpoint.answered == 2
    assert (status, body["model"], body["choices"][0]["message"]["content"]) == (200, "tiny", "42")
    assert "token_ids" not in body
    assert (with_tokens["token_ids"], with_tokens["logprobs"]) == ([1], [-0.5])
    assert model.requests[0].params == {"temperature": 0.5, "stop": ["x"]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 2}, "n = 2 is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty = 0.5 is not supported: leave it out (possible: 0)"),
        ({"tool_choice": "required"}, "possible: auto, none"),
        ({"best_of": 3}, "best_of is not supported: leave it out"),
        ({"messages": []}, "at least one"),
        ({"messages": "hi"}, "must be a list"),
        ({"tools": "x"}, "tools must be"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    model = ScriptedModel()
    async with opened(model) as (_, url):
        status, body, _ = await post(url, {**ASKED, **change})
    assert (status, model.requests) == (400, [])
    assert words in body["error"]["message"]


async def test_nobody_is_answered_without_the_key() -> None:
    async with opened(ScriptedModel()) as (_, url), aiohttp.ClientSession() as session:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic the-key"}):
            assert (await post(url, ASKED, headers))[0] == 401
            async with session.get(f"{url}/models", headers=headers) as answer:
                assert answer.status == 401
        async with session.get(f"{url}/models", headers=KEY) as answer:
            assert (await answer.json())["data"][0]["id"] == "tiny"


@pytest.mark.parametrize(
    ("category", "status", "again"),
    [("context_length", 400, False), ("connection", 503, True), ("server_died", 503, False), ("unknown", 500, False)],
)
async def test_a_failure_says_whether_to_ask_again(category: str, status: int, again: bool) -> None:
    async with opened(ScriptedModel(fail(category))) as (_, url):
        found, body, headers = await post(url, ASKED)
    assert (found, body["error"]["code"]) == (status, category)
    assert ("Retry-After" in headers, headers.get("x-should-retry")) == (again, None if again else "false")


class Slow:
    """Says a letter, then waits for `go`."""

    spec = SPEC

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cut_off = asyncio.Event()

    async def complete(self, request: ChatRequest) -> Completion:
        request.tell(Piece({"content": "4"}))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cut_off.set()
            raise
        return say("42")

    async def close(self) -> None:
        return None


async def test_a_stream_comes_while_the_model_writes() -> None:
    model = Slow()
    async with opened(model) as (endpoint, url), aiohttp.ClientSession() as session:
        body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
        async with session.post(f"{url}/chat/completions", json=body, headers=KEY) as answer:
            lines = answer.content
            first = b""
            while b'"content":"4"' not in first:
                first = await lines.readline()
            assert not model.go.is_set(), "before the answer is whole"
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(drained(endpoint)), 0.05)
            model.go.set()
            rest = await lines.read()
        assert b'"content":"2"' in rest
        assert b'"total_tokens":10' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        await endpoint.drained(5)


async def drained(endpoint: InferenceEndpoint) -> None:
    await endpoint.drained(5)


async def test_whoever_hangs_up_ends_the_call() -> None:
    model = Slow()
    async with opened(model) as (_, url), aiohttp.ClientSession() as session:
        async with session.post(f"{url}/chat/completions", json={**ASKED, "stream": True}, headers=KEY) as answer:
            await answer.content.readline()
        await asyncio.wait_for(model.cut_off.wait(), 5)


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    model = Slow()
    async with opened(model, time_limit_s=0.05) as (_, url):
        status, body, _ = await post(url, ASKED)
        assert (status, body["error"]["code"]) == (504, "timeout")
        assert model.cut_off.is_set()
