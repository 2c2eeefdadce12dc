"""A trainer for a unit test: it asks for `add` when the user wants arithmetic, then finishes."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import httpx
from fastapi import FastAPI, Request

from osmosis.base.jsonable import JsonObject
from osmosis.compat.llm_clients import OsmosisLLMClient
from osmosis.records.run.rollout import Message
from osmosis.sdk.messages import get_message_content, get_message_role
from osmosis.serve.server.callbacks import Post, ResultDelivery, Spool

_ARITHMETIC = ("calculate", "add", "sum", "plus", "subtract", "multiply", "divide")

ToolCallGenerator = Callable[[Message], "list[JsonObject] | None"]
"""Takes the last message, returns the tool calls to ask for, or None to answer in words."""


class RolloutCompletionTracker:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.responses: list[JsonObject] = []

    def record(self, response: JsonObject) -> None:
        self.responses.append(response)
        self.event.set()

    def clear(self) -> None:
        self.responses.clear()
        self.event.clear()

    def wait(self, timeout: float = 5.0) -> bool:
        return self.event.wait(timeout)


def fake_token_ids(text: str) -> list[int]:
    return list(range(len(text)))


def fake_prompt_token_ids(messages: list[Message]) -> list[int]:
    return list(range(10 * max(1, len(messages))))


def default_tool_calls(last: Message) -> list[JsonObject] | None:
    text = get_message_content(last).lower()
    if get_message_role(last) != "user" or not any(word in text for word in _ARITHMETIC):
        return None
    function = {"name": "add", "arguments": '{"a": 5, "b": 3}'}
    return [{"id": "call_mock_add", "type": "function", "function": function}]


def create_mock_trainer_app(
    tracker: RolloutCompletionTracker | None = None, tool_call_generator: ToolCallGenerator | None = None
) -> FastAPI:
    """Create the trainer as an ASGI app: `/v1/chat/completions`, `/v1/rollout/completed[/{id}]`, `/health`."""
    generate = tool_call_generator or default_tool_calls
    completed: dict[str, JsonObject] = {}
    app = FastAPI(title="mock-trainer")

    # Bodies are read by hand: a test may post anything and see how its own code takes the answer.
    async def completions(request: Request) -> JsonObject:
        body = await request.json()
        messages: list[Message] = body.get("messages") or [{}]
        answer = completion_of(messages, generate(messages[-1]))
        return {**answer, "id": body.get("rollout_id") or answer["id"]}

    async def complete(request: Request) -> dict[str, str]:
        body = await request.json()
        completed[str(body.get("rollout_id"))] = body
        if tracker is not None:
            tracker.record(body)
        return {"status": "ok"}

    async def completed_one(rollout_id: str) -> JsonObject:
        return completed.get(rollout_id, {})

    async def health() -> dict[str, str]:
        return {"status": "healthy", "service": "mock-trainer"}

    app.add_api_route("/v1/chat/completions", completions, methods=["POST"])
    app.add_api_route("/v1/rollout/completed", complete, methods=["POST"])
    app.add_api_route("/v1/rollout/completed/{rollout_id}", completed_one, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET"])
    return app


def completion_of(messages: list[Message], calls: Sequence[Mapping[str, object]] | None) -> JsonObject:
    after_tool = get_message_role(messages[-1]) == "tool"
    text = "The calculation is complete." if after_tool else "OK."
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message = {"role": "assistant", "content": "", "tool_calls": calls}
    ids = fake_token_ids(get_message_content(message) or str(calls or ""))
    prompt = fake_prompt_token_ids(messages)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:12]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "default",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)},
        "token_ids": ids,
        "logprobs": [0.0] * len(ids),
        "prompt_token_ids": prompt,
    }


class Patches(Protocol):
    def setattr(self, target: object, name: str, value: object, /) -> None: ...


def patch_httpx_for_mock_trainer(client: httpx.Client, monkeypatch: Patches) -> None:
    """Send what agent loops post to a trainer into `client` (a test client of the mock trainer) instead.

    `httpx.AsyncClient.post`, `OsmosisLLMClient` and a rollout server's results are redirected, until `monkeypatch`
    undoes it. Results that earlier servers of this machine did not deliver stay where they are."""
    import json as codec

    def posted(url: str, json: object, headers: dict[str, str] | None = None) -> httpx.Response:
        return client.post(httpx.URL(url).path, json=json, headers=headers)

    async def httpx_post(
        _: object, url: object, *, json: object = None, headers: dict[str, str] | None = None, **__: object
    ) -> httpx.Response:
        return posted(str(url), json=json, headers=headers)

    async def send(_: object, url: str, body: Mapping[str, object]) -> tuple[int, str, str | None]:
        reply = posted(url, json=body)
        return reply.status_code, reply.text, reply.headers.get("Retry-After")

    async def exchange(_: object, post: Post) -> tuple[int, bytes, str | None]:
        reply = posted(post.url, json=codec.loads(post.body))
        return reply.status_code, reply.content, reply.headers.get("Retry-After")

    monkeypatch.setattr(httpx.AsyncClient, "post", httpx_post)
    monkeypatch.setattr(OsmosisLLMClient, "_send", send)
    monkeypatch.setattr(ResultDelivery, "exchange", exchange)
    # Somebody's real results must not end in a mock.
    monkeypatch.setattr(Spool, "adopt", lambda *_: iter(()))
