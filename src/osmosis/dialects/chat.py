"""OpenAI's chat completions: requests are the internal form already; replies whole, or as deltas that add up to it.
https://platform.openai.com/docs/api-reference/chat"""

import time
import uuid
from collections.abc import Iterator

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import call as dialect
from osmosis.records.run.rollout import Completion

NOT_PARAMS = frozenset({"messages", "tools", "model", "stream", "stream_options", "rollout_id"})


def parse(body: JsonObject) -> dialect.Call:
    messages, tools = body.get("messages"), body.get("tools") or None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        dialect.bad_request("messages must be a list of objects")
    if tools is not None and not isinstance(tools, list):
        dialect.bad_request("tools must be a list of objects")
    options = body.get("stream_options")
    handles = {
        index: ids
        for index, message in enumerate(messages)
        if (calls := message.get("tool_calls")) and message.get("role") == "assistant" and isinstance(calls, list)
        if (ids := [str(call["id"]) for call in calls if isinstance(call, dict) and call.get("id")])
    }
    return dialect.Call(
        messages,
        tools,
        {key: value for key, value in body.items() if key not in NOT_PARAMS and value is not None},
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        with_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        handles=handles,
    )


def render(call: dialect.Call, reply: Completion, envelope: dialect.Envelope) -> JsonObject:
    tool_calls = reply.message.get("tool_calls")
    body = completion_body(reply, model=envelope.model)
    if tool_calls and not reply.choices:
        ids = [envelope.claim(str(call.get("id") or f"call_{i}")) for i, call in enumerate(tool_calls)]
        if ids != [call.get("id") for call in tool_calls]:
            renamed = [{**call, "id": call_id} for call, call_id in zip(tool_calls, ids, strict=True)]
            body["choices"][0]["message"] = {**reply.message, "tool_calls": renamed}
    return body


def error_body(error: dialect.EndpointError) -> JsonObject:
    kind = "model_error" if error.status == dialect.MODEL_FAILED or error.status >= 500 else "invalid_request_error"
    return {"error": {"message": error.message, "type": kind, "code": error.code}}


def completion_body(done: Completion, *, model: str = "") -> JsonObject:
    """Build a `chat.completion` object, with token ids and log-probabilities when the model gave them."""
    choice: JsonObject = {
        "index": 0,
        "message": done.message,
        "finish_reason": done.finish_reason or "stop",
        "logprobs": None,
    }
    body: JsonObject = {
        "id": done.raw_id or f"chatcmpl-{uuid.uuid4().hex}",
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


class ChatStream(dialect.ReplyStream):
    """Every key of a delta travels, also those that only some servers know."""

    def __init__(self, call: dialect.Call, envelope: dialect.Envelope) -> None:
        super().__init__(call, envelope)
        self._head: JsonObject = {}
        self._texts: dict[str, str] = {}
        self._calls: set[int] = set()
        self._others: set[str] = set()

    def begin(self) -> bytes:
        self._head = {
            "id": self.envelope.raw_id or f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": self.envelope.created,
            "model": self.envelope.model,
        }
        return self._event({"role": "assistant", "content": ""})

    def delta(self, delta: JsonObject, logprobs: JsonObject | None = None) -> bytes:
        for key, value in delta.items():
            if isinstance(value, str):
                self._texts[key] = self._texts.get(key, "") + value
            elif key == "tool_calls" and isinstance(value, list):
                self._calls |= {call.get("index", 0) for call in value}
                delta = {**delta, key: [self._claimed(call) for call in value]}
            else:
                self._others.add(key)
        return self._event(delta, of_tokens=logprobs)

    def finish(self, reply: Completion) -> bytes:
        return b"".join(self.rest(reply))

    def rest(self, done: Completion) -> Iterator[bytes]:
        for key, value in done.message.items():
            if key in ("role", "tool_calls") or value is None or key in self._others:
                continue
            if isinstance(value, str):
                yield from (self._event({key: part}) for part in self._unsent(key, value))
            else:
                yield self._event({key: value})
        for index, call in enumerate(done.message.get("tool_calls") or []):
            if index not in self._calls:
                yield from (self._event({"tool_calls": [delta]}) for delta in _call_deltas(index, self._claimed(call)))
        yield self._event({}, done.finish_reason or "stop", extras=token_extras(done))
        if self.call.with_usage:
            yield dialect.event({**self._head, "choices": [], "usage": usage_body(done)})
        yield b"data: [DONE]\n\n"

    def fail(self, error: dialect.EndpointError) -> bytes:
        return dialect.event(error_body(error))

    def _claimed(self, call: JsonObject) -> JsonObject:
        return {**call, "id": self.envelope.claim(str(call["id"]))} if call.get("id") else call

    def _unsent(self, key: str, text: str) -> Iterator[str]:
        sent = self._texts.get(key, "")
        left = text[len(sent) :] if text.startswith(sent) else ""
        return (left[start : start + dialect.CHUNK_CHARS] for start in range(0, len(left), dialect.CHUNK_CHARS))

    def _event(
        self, delta: JsonObject, end: str | None = None, *, of_tokens: object = None, extras: JsonObject | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": of_tokens}
        return dialect.event({**self._head, "choices": [choice], **(extras or {})})


def _call_deltas(index: int, call: JsonObject) -> Iterator[dict[str, object]]:
    function = call.get("function") or {}
    arguments = dialect.arguments_text(function) if function.get("arguments") else ""
    yield {
        "index": index,
        "id": call.get("id") or f"call_{index}",
        "type": call.get("type") or "function",
        "function": {"name": function.get("name") or "", "arguments": ""},
    }
    for start in range(0, len(arguments), dialect.CHUNK_CHARS):
        yield {"index": index, "function": {"arguments": arguments[start : start + dialect.CHUNK_CHARS]}}
