"""Anthropic's Messages as its callers speak it: a call becomes a request, a reply or its stream a chat completion.
https://docs.anthropic.com/en/api/messages. What a request cannot say: reasoning without its signature, an answer
without content, names of users, several choices."""

from collections.abc import Iterator

from osmosis.base.jsonable import JsonObject
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
from osmosis.dialects.messages import ERRORS, STOPS, add_assistant, tool_use_block
from osmosis.records.run.rollout import Message

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
