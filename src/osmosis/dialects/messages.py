"""Anthropic's Messages: system and content blocks, thinking with signatures, tool_use and tool_result.
https://docs.anthropic.com/en/api/messages and .../streaming. What it cannot say: names of users, several choices, text
between two tool calls of one answer."""

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import call as dialect
from osmosis.records.run.rollout import Category, Completion, Message

SAME = ("temperature", "top_p", "top_k", "max_tokens")
IGNORED = ("cache_control", "context_management", "metadata", "service_tier", "thinking", "betas", "inference_geo")
REFUSED = ("mcp_servers", "container")
STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def parse(body: JsonObject) -> dialect.Call:
    call = dialect.Call([], None, model=str(body.get("model") or ""), stream=bool(body.get("stream")))
    for key in REFUSED:
        if body.get(key):
            dialect.bad_request(f"{key} runs on the provider's servers, which run none here: leave it out")
    call.left_out += [key for key in IGNORED if body.get(key)]
    system = body.get("system")
    if system:
        parts = [_part(block) for block in _blocks(system, "system")]
        call.messages.append({"role": "system", "content": dialect.join_parts(parts)})
    for number, message in enumerate(dialect.objects(body.get("messages"), "messages")):
        _add_message(call, message, f"messages[{number}]")
    tools = []
    for tool in dialect.objects(body.get("tools"), "tools"):
        if tool.get("type") not in (None, "custom"):
            dialect.refuse_tool(tool["type"])
        tools.append(
            dialect.function_tool(
                tool.get("name"), tool.get("description"), tool.get("input_schema"), tool.get("strict")
            )
        )
    call.tools = tools or None
    _add_params(call, body)
    return call


def _add_params(call: dialect.Call, body: JsonObject) -> None:
    params = call.params
    params.update({key: body[key] for key in SAME if body.get(key) is not None})
    if body.get("stop_sequences"):
        params["stop"] = body["stop_sequences"]
    choice = body.get("tool_choice") or {}
    if choice:
        kind = str(choice.get("type"))
        named = {"type": "function", "function": {"name": choice.get("name")}}
        params["tool_choice"] = named if kind == "tool" else {"any": "required"}.get(kind, kind)
        if choice.get("disable_parallel_tool_use"):
            params["parallel_tool_calls"] = False
    output = body.get("output_config") or {}
    if output.get("effort"):
        call.left_out.append("output_config.effort")
    form = output.get("format") or body.get("output_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {"name": "answer", "schema": form.get("schema") or {}, "strict": True}
        params["response_format"] = {"type": "json_schema", "json_schema": schema}


def _blocks(content: object, where: str) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else dialect.objects(content, where)


def _add_message(call: dialect.Call, message: JsonObject, where: str) -> None:
    role, blocks = message.get("role"), _blocks(message.get("content"), f"{where}.content")
    if role == "assistant":
        return add_assistant(call, blocks)
    if role not in ("user", "system"):
        dialect.bad_request(f"{where}.role must be user, assistant or system")
    parts: list[JsonObject] = []
    for block in blocks:
        if block.get("type") != "tool_result":
            parts.append(_part(block))
            continue
        inner = [_part(sub) for sub in _blocks(block.get("content") or "", f"{where}.content")]
        result: Message = {
            "role": "tool",
            "tool_call_id": str(block.get("tool_use_id")),
            "content": dialect.join_parts(inner),
        }
        if block.get("is_error"):
            result["is_error"] = True
        call.messages.append(result)
    if parts:
        call.messages.append({"role": role, "content": dialect.join_parts(parts)})


def add_assistant(call: dialect.Call, blocks: list[JsonObject]) -> None:
    texts, thoughts, calls, handles = [], [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind in ("thinking", "redacted_thinking"):
            thoughts.append(block)
            handles.append(str(block.get("signature") or block.get("data") or ""))
        elif kind == "tool_use":
            calls.append(dialect.tool_call(str(block.get("id")), str(block.get("name")), block.get("input")))
            handles.append(str(block.get("id")))
        else:
            dialect.refuse_tool(kind)
    reasoning = "\n".join(str(block["thinking"]) for block in thoughts if block.get("thinking"))
    signed = [block for block in thoughts if block.get("signature") or block.get("data")]
    call.add_assistant(texts, reasoning, calls, handles, thinking_blocks=signed)


def _part(block: JsonObject) -> JsonObject:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": str(block.get("text") or "")}
    source = block.get("source") or {}
    if kind not in ("image", "document"):
        dialect.refuse_tool(f"content of type {kind}")
    if source.get("type") == "text":
        return {"type": "text", "text": str(source.get("data") or "")}
    if source.get("type") not in ("base64", "url"):
        dialect.bad_request(f"{kind}.source.type {source.get('type')!r} is not supported: send base64, url or text")
    url = source["url"] if source["type"] == "url" else dialect.data_url(source.get("media_type"), source.get("data"))
    return dialect.image_part(url) if kind == "image" else dialect.file_part(url, block.get("title"))


def tool_use_block(call_id: object, call: JsonObject) -> JsonObject:
    function = call["function"]
    return {
        "type": "tool_use",
        "id": call_id,
        "name": function.get("name"),
        "input": dialect.arguments_object(function),
    }


def render(call: dialect.Call, reply: Completion, envelope: dialect.Envelope) -> JsonObject:
    blocks: list[JsonObject] = []
    if reasoning := dialect.reasoning_of(reply.message):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": envelope.handle})
    if text := dialect.answer_text(reply.message):
        blocks.append({"type": "text", "text": text})
    for index, tool in enumerate(reply.message.get("tool_calls") or ()):
        blocks.append(tool_use_block(envelope.claim(str(tool.get("id") or f"call_{index}")), tool))
    return {**_head(envelope), "content": blocks, "stop_reason": _stop(reply), "usage": usage_body(reply)}


def _head(envelope: dialect.Envelope) -> JsonObject:
    return {
        "id": f"msg_{envelope.handle}",
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop(reply: Completion) -> str:
    if reply.message.get("refusal"):
        return "refusal"
    return STOPS.get(reply.finish_reason or "", "end_turn")


def usage_body(reply: Completion) -> JsonObject:
    usage = reply.usage
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def error_body(error: dialect.EndpointError) -> JsonObject:
    kind = ERRORS.get(error.status, "invalid_request_error" if error.status == dialect.MODEL_FAILED else "api_error")
    message = error.message
    if error.code == Category.CONTEXT_LENGTH.value and "prompt is too long" not in message:
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


class MessagesStream(dialect.ItemStream):
    """`content_block_start`, deltas and `content_block_stop` for each block in turn; one block is open at a time."""

    def __init__(self, call: dialect.Call, envelope: dialect.Envelope) -> None:
        super().__init__(call, envelope)
        self._index = -1
        self._open: object = None
        self._is_reasoning = False

    def begin(self) -> bytes:
        usage = {"input_tokens": 0, "output_tokens": 0}
        return self._named("message_start", message={**_head(self.envelope), "usage": usage})

    def on_text(self, text: str) -> bytes:
        start = self._start("text", {"type": "text", "text": ""})
        return start + self._delta({"type": "text_delta", "text": text})

    def on_reasoning(self, text: str) -> bytes:
        start = self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._is_reasoning = True
        return start + self._delta({"type": "thinking_delta", "thinking": text})

    def on_call(self, index: int, call_id: str, name: str) -> bytes:
        return self._start(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}})

    def on_arguments(self, index: int, text: str) -> bytes:
        return self._delta({"type": "input_json_delta", "partial_json": text}) if self._open == index else b""

    def finish(self, reply: Completion) -> bytes:
        # Whole arguments that are no object would break the client's parser in the middle of the stream.
        calls = reply.message.get("tool_calls")
        if calls and not self._arguments:
            safe = [{**call, "function": {**call["function"], "arguments": _safe(call["function"])}} for call in calls]
            reply.message = {**reply.message, "tool_calls": safe}
        return super().finish(reply)

    def end(self, reply: Completion) -> bytes:
        usage, delta = usage_body(reply), {"stop_reason": _stop(reply), "stop_sequence": None}
        last = self._named("message_delta", delta=delta, usage=usage)
        return self._close() + last + self._named("message_stop")

    def fail(self, error: dialect.EndpointError) -> bytes:
        return dialect.event(error_body(error), "error")

    def _start(self, key: object, block: JsonObject) -> bytes:
        if self._open == key:
            return b""
        closed = self._close()
        self._index += 1
        self._open = key
        return closed + self._named("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": self.envelope.handle})
        self._open = None
        return signed + self._named("content_block_stop", index=self._index)

    def _delta(self, delta: JsonObject) -> bytes:
        return self._named("content_block_delta", index=self._index, delta=delta)

    def _named(self, name: str, **fields: object) -> bytes:
        return dialect.event({"type": name, **fields}, name)


def _safe(function: JsonObject) -> str:
    text = function.get("arguments")
    value = dialect.arguments_object(function)
    return text if isinstance(text, str) and "arguments" not in value else orjson.dumps(value).decode()
