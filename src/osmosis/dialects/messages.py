"""Anthropic's Messages: system and content blocks, thinking with signatures, tool_use and tool_result.
https://docs.anthropic.com/en/api/messages and .../streaming. What it cannot say: names of users, several choices, text
between two tool calls of one answer; what our own request cannot: reasoning without its signature, an answer without
content."""

from collections.abc import Iterator

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import call as dialect
from osmosis.dialects.call import (
    Call,
    bad_request,
    chat_delta,
    chat_reply,
    objects,
    parts_of,
    split_data_url,
    text_of,
    url_of_part,
)
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


MARK: JsonObject = {"type": "ephemeral"}
_SYSTEM = ("system", "developer")
_FINISHES = {stop: finish for finish, stop in STOPS.items()} | {"model_context_window_exceeded": "length"}
_STATUSES = {kind: status for status, kind in ERRORS.items()} | {"overloaded_error": 529, "billing_error": 402}
_UNMARKED = ("thinking", "redacted_thinking")


def render_request(call: Call) -> JsonObject:
    """Return the body of a request. Parameters without a counterpart travel as they are."""
    params = dict(call.params)
    mark = params.pop("cache_control", MARK)
    body: JsonObject = {"model": call.model, "max_tokens": params.pop("max_tokens", 4096), "system": [], "messages": []}
    for message in call.messages:
        if message.get("role") in _SYSTEM and not body["messages"]:
            body["system"] += [_block(part) for part in parts_of(message.get("content"))]
        else:
            _add_turn(body["messages"], message)
    body["tools"] = [_tool(tool) for tool in call.tools or ()]
    if mark:
        _mark(body, mark)
    stop = params.pop("stop", None)
    body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    body["tool_choice"] = _choice(params.pop("tool_choice", None), params.pop("parallel_tool_calls", True))
    form = params.pop("response_format", None) or {}
    if form.get("type") == "json_schema":
        schema = {"format": {"type": "json_schema", "schema": form["json_schema"].get("schema")}}
        body["output_config"] = {**params.pop("output_config", {}), **schema}
    elif form.get("type") == "json_object":
        bad_request("the Messages API has no response_format json_object: give a json_schema")
    body["stream"] = call.stream or None
    return {**params, **{key: value for key, value in body.items() if value not in (None, [])}}


def _add_turn(turns: list[JsonObject], message: Message) -> None:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        error = {"is_error": True} if message.get("is_error") else {}
        text = content if isinstance(content, str) else [_block(part) for part in parts_of(content)]
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": text, **error}
        if not (turns and turns[-1]["content"] and turns[-1]["content"][0]["type"] == "tool_result"):
            turns.append({"role": "user", "content": []})
        turns[-1]["content"].append(result)
        return
    if role != "assistant":
        blocks = [_block(part) for part in parts_of(content)] or [{"type": "text", "text": ""}]
        turns.append({"role": "system" if role in _SYSTEM else "user", "content": blocks})
        return
    blocks = [block for block in message.get("thinking_blocks") or () if block.get("type") in _UNMARKED]
    if text := text_of(content):
        blocks.append({"type": "text", "text": text})
    blocks += [tool_use_block(tool.get("id"), tool) for tool in message.get("tool_calls") or ()]
    if blocks:
        turns.append({"role": "assistant", "content": blocks})


def _block(part: JsonObject) -> JsonObject:
    marked = {"cache_control": part["cache_control"]} if part.get("cache_control") else {}
    kind, url, name = url_of_part(part)
    if not kind:
        return {"type": "text", "text": str(part.get("text") or ""), **marked}
    inline = split_data_url(url)
    source = {"type": "base64", "media_type": inline[0], "data": inline[1]} if inline else {"type": "url", "url": url}
    title = {"title": name} if name else {}
    return {"type": "image" if kind == "image" else "document", "source": source, **title, **marked}


def _tool(tool: JsonObject) -> JsonObject:
    if "function" not in tool:
        return tool
    function = tool["function"]
    optional = {"description": function.get("description"), "strict": function.get("strict")}
    optional["cache_control"] = tool.get("cache_control") or function.get("cache_control")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    head = {"name": function.get("name"), "input_schema": schema}
    return {**head, **{key: value for key, value in optional.items() if value}}


def _mark(body: JsonObject, mark: JsonObject) -> None:
    """Mark for the provider's cache what later calls begin with: the instructions, which rows share, and in the calls
    of an agent the conversation so far. What the caller has marked stays as it is."""
    every = [*body["system"], *body["tools"], *(block for turn in body["messages"] for block in turn["content"])]
    if any("cache_control" in block for block in every):
        return
    ends = [body["system"] or body["tools"]]
    if body["messages"] and (body["tools"] or len(body["messages"]) > 1):
        ends.append(body["messages"][-1]["content"])
    for blocks in ends:
        if blocks and blocks[-1].get("type") not in _UNMARKED and blocks[-1].get("text") != "":
            blocks[-1] = {**blocks[-1], "cache_control": mark}


def _choice(choice: JsonObject | str | None, parallel: object) -> JsonObject | None:
    if choice is None and parallel is not False:
        return None
    single: JsonObject = {} if parallel is not False else {"disable_parallel_tool_use": True}
    if isinstance(choice, dict):
        return {"type": "tool", "name": (choice.get("function") or {}).get("name"), **single}
    kind = {"required": "any", None: "auto"}.get(choice, choice)
    return {"type": kind, **(single if kind != "none" else {})}


def parse_reply(body: JsonObject) -> JsonObject:
    """Return a reply as a chat completion, an error as `{"error": ...}`; raise `EndpointError` for any other body."""
    if isinstance(error := body.get("error"), dict):
        return {"error": {**error, "code": str(_STATUSES.get(str(error.get("type")), 502))}}
    if not isinstance(body.get("content"), list):
        bad_request("there is no content")
    call = Call([])
    add_assistant(call, objects(body["content"], "content"))
    usage = body.get("usage") or {}
    cached, written = (int(usage.get(f"cache_{kind}_input_tokens") or 0) for kind in ("read", "creation"))
    counts = {
        "prompt_tokens": int(usage.get("input_tokens") or 0) + cached + written,
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached, "cache_creation_tokens": written},
        "completion_tokens_details": {
            "reasoning_tokens": (usage.get("output_tokens_details") or {}).get("thinking_tokens")
        },
    }
    return chat_reply(call.messages[0], _FINISHES.get(str(body.get("stop_reason")), "stop"), counts, body)


class ReplyReader:
    def __init__(self) -> None:
        self._body: JsonObject = {}
        self._blocks: list[JsonObject] = []
        self._call = -1
        self._has_thought = self._is_new_thought = False

    def read(self, event: JsonObject) -> Iterator[JsonObject]:
        kind = event.get("type")
        if kind == "message_start":
            self._body = dict(event["message"])
        elif kind == "content_block_start":
            yield from self._start(dict(event["content_block"]))
        elif kind == "content_block_delta":
            yield from self._delta(event["delta"])
        elif kind == "message_delta":
            counted = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
            usage = {**(self._body.get("usage") or {}), **counted}
            self._body.update(stop_reason=event["delta"].get("stop_reason"), usage=usage)
        elif kind == "message_stop":
            yield parse_reply({**self._body, "content": self._blocks})
        elif kind == "error":
            yield parse_reply(event)

    def _start(self, block: JsonObject) -> Iterator[JsonObject]:
        self._blocks.append(block)
        self._is_new_thought = self._has_thought
        if block["type"] == "tool_use":
            self._call += 1
            function = {"name": block.get("name"), "arguments": ""}
            yield chat_delta(tool_calls=[{"index": self._call, "id": block.get("id"), "function": function}])

    def _delta(self, delta: JsonObject) -> Iterator[JsonObject]:
        block = self._blocks[-1]
        for key in ("text", "thinking", "signature"):
            if delta.get(key):
                block[key] = (block.get(key) or "") + delta[key]
        if text := delta.get("text"):
            yield chat_delta(content=text)
        elif text := delta.get("thinking"):
            yield chat_delta(reasoning_content=f"\n{text}" if self._is_new_thought else text)
            self._has_thought, self._is_new_thought = True, False
        elif text := delta.get("partial_json"):
            before = block.get("input")
            block["input"] = (before if isinstance(before, str) else "") + text
            yield chat_delta(tool_calls=[{"index": self._call, "function": {"arguments": text}}])
