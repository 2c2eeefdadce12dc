"""A completion in the wire form of chat completions: one object, or a stream of deltas: the pieces as they come from
a model that streams, and cut from the finished answer otherwise. What is streamed adds up to the object.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping

import orjson

from osmosis.base.json_types import JsonObject

from .model import Completion, Piece

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
        "choices": done.choices or [choice],
        "usage": usage_body(done),
    }
    if done.fingerprint:
        body["system_fingerprint"] = done.fingerprint
    if done.top_logprobs and not done.choices:
        choice["logprobs"] = {"content": done.top_logprobs}
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
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_creation_tokens": usage.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def completion_events(done: Completion, *, model: str, with_usage: bool) -> Iterator[bytes]:
    """A completion that was never streamed, as server-sent events: role, text, tool calls, finish reason, usage,
    `[DONE]`."""
    events = EventStream(model=done.model or model, raw_id=done.raw_id)
    yield events.begin()
    yield from events.rest(done, with_usage=with_usage)


class EventStream:
    """The server-sent events of one answer: `begin`, each `piece` as it comes, then the `rest` of the finished answer.
    What they say adds up to the completion."""

    def __init__(self, *, model: str, raw_id: str | None = None) -> None:
        self._head = {
            "id": raw_id or _new_id(),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._text: dict[str, str] = {}
        self._calls: set[int] = set()
        self._other: set[str] = set()

    def begin(self) -> bytes:
        return self._event({"role": "assistant", "content": ""})

    def piece(self, piece: Piece) -> bytes:
        """A piece, as it is."""
        for key, value in piece.delta.items():
            if isinstance(value, str):
                self._text[key] = self._text.get(key, "") + value
            elif key == "tool_calls" and isinstance(value, list):
                self._calls |= {call.get("index", 0) for call in value}
            else:
                self._other.add(key)
        return self._event(piece.delta, of_tokens=piece.logprobs)

    def rest(self, done: Completion, *, with_usage: bool) -> Iterator[bytes]:
        """What the pieces have not said of the finished answer, and its end."""
        for key, value in done.message.items():
            if key in ("role", "tool_calls") or value is None or key in self._other:
                continue
            if isinstance(value, str):
                yield from (self._event({key: part}) for part in self._unsaid(key, value))
            else:
                yield self._event({key: value})
        for index, call in enumerate(done.message.get("tool_calls") or []):
            if index not in self._calls:
                yield from (self._event({"tool_calls": [delta]}) for delta in _call_deltas(index, call))
        yield self._event({}, done.finish_reason or "stop", extras=token_extras(done))
        if with_usage:
            yield _data({**self._head, "choices": [], "usage": usage_body(done)})
        yield b"data: [DONE]\n\n"

    def _unsaid(self, key: str, text: str) -> Iterator[str]:
        said = self._text.get(key, "")
        left = text[len(said) :] if text.startswith(said) else ""
        return (left[start : start + CHUNK_CHARS] for start in range(0, len(left), CHUNK_CHARS))

    def _event(
        self,
        delta: Mapping[str, object],
        finish: str | None = None,
        *,
        of_tokens: Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": of_tokens}
        return _data({**self._head, "choices": [choice], **(extras or {})})


def error_event(body: Mapping[str, object]) -> bytes:
    """An error after the stream has begun, when it is too late for a status: client libraries raise it."""
    return _data(body)


def _data(body: Mapping[str, object]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"


def _id(done: Completion) -> str:
    return done.raw_id or _new_id()


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
