"""A finished completion in the wire form of chat completions: one object, or a stream of deltas. The stream is cut
from the finished answer, so an error of the model still has an HTTP status; what is streamed adds up to the object.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping

import orjson

from osmosis.base.json_types import JsonObject

from .model import Completion

CHUNK_CHARS = 200


def completion_body(done: Completion, *, model: str = "") -> dict[str, object]:
    """A `chat.completion` object; `model` is named when the completion does not say which it was. Token ids and
    log-probabilities ride along when the model gave them."""
    choice: dict[str, object] = {
        "index": 0,
        "message": done.message,
        "finish_reason": done.finish_reason or "stop",
        "logprobs": None,
    }
    body: dict[str, object] = {
        "id": _id(done),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": done.model or model,
        "choices": [choice],
        "usage": usage_body(done),
    }
    body.update(token_extras(done))
    return body


def token_extras(done: Completion) -> dict[str, object]:
    """`token_ids`, `logprobs`, `prompt_token_ids`: the keys generation 0.2 and trainers read."""
    extras = {"token_ids": done.token_ids, "logprobs": done.logprobs, "prompt_token_ids": done.prompt_token_ids}
    return {key: value for key, value in extras.items() if value is not None}


def usage_body(done: Completion) -> dict[str, object]:
    usage = done.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def completion_events(done: Completion, *, model: str, with_usage: bool) -> Iterator[bytes]:
    """The same completion as server-sent events: role, content, tool calls, finish reason, usage, `[DONE]`."""
    head = {
        "id": _id(done),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": done.model or model,
    }

    def event(delta: Mapping[str, object], finish: str | None = None, **more: object) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return b"data: " + orjson.dumps({**head, "choices": [choice], **more}) + b"\n\n"

    message = done.message
    yield event({"role": message.get("role", "assistant"), "content": ""})
    for key in ("reasoning_content", "content", "refusal"):
        text = message.get(key)
        if isinstance(text, str):
            for start in range(0, len(text), CHUNK_CHARS):
                yield event({key: text[start : start + CHUNK_CHARS]})
    for index, call in enumerate(message.get("tool_calls") or []):
        yield from (event({"tool_calls": [delta]}) for delta in _call_deltas(index, call))
    yield event({}, done.finish_reason or "stop", **token_extras(done))
    if with_usage:
        yield b"data: " + orjson.dumps({**head, "choices": [], "usage": usage_body(done)}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _id(done: Completion) -> str:
    return done.raw_id or f"chatcmpl-{uuid.uuid4().hex}"


def _call_deltas(index: int, call: JsonObject) -> Iterator[dict[str, object]]:
    function = call.get("function") or {}
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    yield {
        "index": index,
        "id": call.get("id") or f"call_{index}",
        "type": call.get("type") or "function",
        "function": {"name": function.get("name") or "", "arguments": ""},
    }
    for start in range(0, len(arguments), CHUNK_CHARS):
        yield {"index": index, "function": {"arguments": arguments[start : start + CHUNK_CHARS]}}
