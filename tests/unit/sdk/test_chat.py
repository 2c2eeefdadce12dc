"""The chat client of workflows, against endpoints that answer, refuse, limit and babble."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from osmosis.errors import ModelError
from osmosis.llm.model import Completion
from osmosis.records.run.rollout import Usage
from osmosis.sdk.chat import MODEL_ID, ChatClient, connections_kept
from osmosis.sdk.tools import tool
from support.dialect_clients import completion_events
from support.server import answering

GOOD = {
    "choices": [{"message": {"content": [{"type": "text", "text": "four"}]}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
}


@asynccontextmanager
async def endpoint(*answers: tuple[int, str], wait: str = "0.01") -> AsyncIterator[tuple[str, list[Any]]]:
    asked: list[Any] = []
    waiting = list(answers)

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers.get("Authorization"), await request.json()))
        status, text = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return web.Response(status=status, text=text, headers={"Retry-After": wait})

    async with answering(answer) as url:
        yield f"{url}/v1/rollouts/r-1/", asked


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_one_call() -> None:
    async with endpoint((200, json.dumps(GOOD))) as (url, asked), ChatClient(url, api_key="k") as chat:
        answer = await chat.complete([{"role": "user", "content": "2+2"}], tools=[add, add.schema], top_k=4)
    path, bearer, body = asked[0]
    assert (path, bearer) == ("/v1/rollouts/r-1/chat/completions", "Bearer k")
    assert (body["model"], body["top_k"]) == (MODEL_ID, 4)
    assert body["tools"] == [add.schema.to_dict()] * 2
    assert (answer.content, answer.finish_reason, answer.tool_calls) == ("four", "stop", [])
    assert answer.message["role"] == "assistant"
    assert (chat.usage.prompt_tokens, chat.usage.cached_tokens, chat.num_calls) == (3, 2, 1)


async def test_passing_trouble_is_repeated() -> None:
    async with endpoint((503, ""), (429, ""), (200, json.dumps(GOOD))) as (url, asked), ChatClient(url) as chat:
        assert (await chat.complete([])).content == "four"
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("status", "text", "category", "calls"),
    [
        (401, '{"error": {"message": "who"}}', "auth", 1),
        (404, "", "model_not_found", 1),
        (400, '{"error": "maximum context length is 8"}', "context_length", 1),
        (400, "no", "bad_request", 1),
        (500, "down", "server_error", 2),
        (200, "no json", "bad_response", 1),
        (200, "[]", "bad_response", 1),
        (200, '{"choices": []}', "bad_response", 1),
    ],
)
async def test_failures_have_a_category(status: int, text: str, category: str, calls: int) -> None:
    async with endpoint((status, text)) as (url, asked), ChatClient(url, max_attempts=2) as chat:
        with pytest.raises(ModelError) as caught:
            await chat.complete([])
    assert caught.value.category == category
    assert len(asked) == calls


async def test_rate_limits_cost_time_and_no_attempts() -> None:
    async with endpoint(*[(429, "slow")] * 2, (200, json.dumps(GOOD))) as (url, asked):
        async with ChatClient(url, max_attempts=2) as chat:
            assert (await chat.complete([])).content == "four"
        async with ChatClient(url) as chat:
            assert (await chat.complete([])).content == "four"
        assert len(asked) == 4
    async with endpoint((429, "slow"), wait="900") as (url, asked), ChatClient(url, max_attempts=1) as chat:
        with pytest.raises(ModelError, match="slow") as caught:
            await chat.complete([])
    assert (caught.value.category, len(asked)) == ("rate_limit", 1)


async def test_what_a_trainer_needs_passes_through() -> None:
    told = {**GOOD, "token_ids": [1, 2], "logprobs": [-0.5, -0.25], "prompt_token_ids": [7], "odd": True}
    async with endpoint((200, json.dumps(told))) as (url, _), ChatClient(url) as chat:
        answer = await chat.complete([])
    assert (answer.token_ids, answer.logprobs, answer.prompt_token_ids) == ([1, 2], [-0.5, -0.25], [7])
    assert answer.raw == told


async def test_unreachable_and_late() -> None:
    async with ChatClient("http://127.0.0.1:9/x", max_attempts=1) as chat:
        with pytest.raises(ModelError) as caught:
            await chat.complete([])
    assert caught.value.category == "connection"
    release = asyncio.Event()

    async def never(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    async with answering(never) as url, ChatClient(url, timeout_s=0.05, max_attempts=1) as chat:
        with pytest.raises(ModelError, match=r"within 0\.05 s"):
            await chat.complete([])
        release.set()


async def test_clients_share_connections_while_any_is_open_or_somebody_keeps_them() -> None:
    peers: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        peers.append(request.transport.get_extra_info("peername") if request.transport else None)
        return web.json_response(GOOD)

    async with answering(answer) as base:
        async with ChatClient(f"{base}/1") as first:
            await first.complete([])
            async with ChatClient(f"{base}/2") as second:
                await second.complete([])
        async with ChatClient(f"{base}/3") as third:
            await third.complete([])
        async with connections_kept():  # as a rollout server does while it lives
            for number in (4, 5):
                async with ChatClient(f"{base}/{number}") as another:
                    await another.complete([])
    assert peers[0] == peers[1] != peers[2] != peers[3] == peers[4]
    with pytest.raises(RuntimeError, match="not open"):
        await first.complete([])


async def test_no_proxy_stands_between_a_rollout_and_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with endpoint((200, json.dumps(GOOD))) as (url, _):
        other_name = url.replace("127.0.0.1", "localhost")
        async with ChatClient(other_name, max_attempts=1) as chat:
            assert (await chat.complete([])).content == "four"


async def test_things_that_are_no_tools_are_refused() -> None:
    async with ChatClient("http://127.0.0.1:9") as chat:
        with pytest.raises(TypeError, match="not a tool"):
            await chat.complete([], tools=[3])


async def test_a_served_workflow_hears_its_answer_in_pieces() -> None:
    done = Completion({"role": "assistant", "content": "one " * 200}, "stop", Usage(prompt_tokens=1))
    events = b"".join(completion_events(done, model="m", with_usage=True)).decode()
    heard: list[str] = []
    async with endpoint((200, events)) as (url, asked), ChatClient(url) as chat:
        answer = await chat.complete([], on_piece=lambda piece: heard.append(piece.delta.get("content", "")))
    assert asked[0][2]["stream"] is True
    assert len(heard) > 2
    assert answer.content == "".join(heard) == "one " * 200
