"""OpenAI's Responses as its callers speak it: a call becomes a request, a reply or its stream a chat completion.
https://platform.openai.com/docs/api-reference/responses. Nothing is stored at the provider: reasoning travels in
encrypted items. What a request cannot say: reasoning without them, stop texts, names of users, several choices."""

from collections.abc import Iterator

from osmosis.base.jsonable import JsonObject
from osmosis.dialects.call import (
    Call,
    arguments_text,
    bad_request,
    chat_delta,
    chat_reply,
    objects,
    parts_of,
    text_of,
    url_of_part,
)
from osmosis.dialects.responses import add_to_assistant
from osmosis.records.run.rollout import Message

ENCRYPTED = "reasoning.encrypted_content"
_AT = "before_call"
"""Key of a reasoning item between the tool calls of an answer: the number of calls before it."""
_STATUSES = {"context_length_exceeded": "400", "invalid_prompt": "400", "insufficient_quota": "429"}
_FINISHES = {"max_output_tokens": "length", "content_filter": "content_filter"}


def render_request(call: Call) -> JsonObject:
    """Return the body of a request. Parameters without a counterpart travel as they are."""
    params = dict(call.params)
    text: JsonObject = dict(params.pop("text", None) or {})
    body: JsonObject = {"model": call.model, "input": [item for message in call.messages for item in _items(message)]}
    body["tools"] = [_tool(tool) for tool in call.tools or ()]
    limits = [params.pop(name, None) for name in ("max_output_tokens", "max_completion_tokens", "max_tokens")]
    body["max_output_tokens"] = next((limit for limit in limits if limit), None)
    if isinstance(choice := params.pop("tool_choice", None), dict):
        choice = {"type": "function", "name": choice["function"]["name"]}
    body["tool_choice"] = choice
    if effort := params.pop("reasoning_effort", None):
        params["reasoning"] = {"effort": effort, **(params.get("reasoning") or {})}
    form = params.pop("response_format", None) or {}
    if form.get("type") == "json_schema":
        text["format"] = {"type": "json_schema", **form["json_schema"]}
    elif form.get("type") == "json_object":
        text["format"] = {"type": "json_object"}
    body.update(text=text or None, stream=call.stream or None)
    return {"store": False, **params, **{key: value for key, value in body.items() if value not in (None, [])}}


def _items(message: Message) -> list[JsonObject]:
    role, content = message.get("role"), message.get("content")
    text = content if isinstance(content, str) else [_content(part) for part in parts_of(content)]
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": text}]
    if role != "assistant":
        return [{"type": "message", "role": "developer" if role == "system" else role, "content": text}]
    items: list[JsonObject] = []
    if content is not None:
        items.append({"type": "message", "role": "assistant", "content": text_of(content)})
    start = len(items)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = {"name": function.get("name"), "arguments": arguments_text(function)}
        items.append({"type": "function_call", "call_id": call.get("id"), **arguments})
    for block in reversed(message.get("thinking_blocks") or ()):
        if block.get("type") == "reasoning":
            at = start + block[_AT] if block.get(_AT) else 0
            items.insert(at, {key: value for key, value in block.items() if key != _AT and value is not None})
    return items


def _tool(tool: JsonObject) -> JsonObject:
    # What chat completions take for granted is said: here the defaults are others.
    usual = {"type": "function", "parameters": {"type": "object", "properties": {}}, "strict": False}
    return {**usual, **tool["function"]} if "function" in tool else tool


def _content(part: JsonObject) -> JsonObject:
    kind, url, name = url_of_part(part)
    if not kind:
        return {"type": "input_text", "text": str(part.get("text") or "")}
    if kind == "image":
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    named = {"filename": name} if name else {}
    return {"type": "input_file", "file_data" if url.startswith("data:") else "file_url": url, **named}


def parse_reply(body: JsonObject) -> JsonObject:
    """Return a reply as a chat completion, an error as `{"error": ...}`; raise `EndpointError` for any other body."""
    if body.get("status") == "failed" or body.get("error"):
        error = body.get("error") or {}
        code = str(error.get("code") or "")
        return {"error": {**error, "code": _STATUSES.get(code, code), "type": code}}
    if not isinstance(body.get("output"), list):
        bad_request("there is no output")
    call = Call([])
    for item in objects(body["output"], "output"):
        add_to_assistant(call, item, str(item.get("type")))
    message, *others = call.messages or [{"role": "assistant", "content": ""}]
    for other in others:  # reasoning between its parts begins another message; all are one answer
        _append(message, other)
    reason = str((body.get("incomplete_details") or {}).get("reason"))
    finish = _FINISHES.get(reason) or ("tool_calls" if message.get("tool_calls") else "stop")
    usage = body.get("usage") or {}
    counts = {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }
    return chat_reply(message, finish, counts, body)


def _append(message: Message, more: Message) -> None:
    count = len(message.get("tool_calls") or ())
    blocks = [{**block, _AT: count} if count else block for block in more.get("thinking_blocks") or ()]
    if more.get("content") is not None:
        message["content"] = (message["content"] or "") + more["content"]
    if more.get("reasoning_content"):
        before = message.get("reasoning_content")
        message["reasoning_content"] = "\n".join(filter(None, [before, more["reasoning_content"]]))
    for key, values in (("thinking_blocks", blocks), ("tool_calls", more.get("tool_calls"))):
        if values:
            message[key] = [*message.pop(key, ()), *values]


class ReplyReader:
    def __init__(self) -> None:
        self._items: list[JsonObject] = []
        self._calls: dict[object, int] = {}
        self._has_thought = self._is_new_thought = False

    def read(self, event: JsonObject) -> Iterator[JsonObject]:
        kind, text = event.get("type"), event.get("delta")
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            yield chat_delta(content=text)
        elif kind in ("response.reasoning_summary_part.added", "response.content_part.added"):
            self._is_new_thought = self._has_thought
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            yield chat_delta(reasoning_content=f"\n{text}" if self._is_new_thought else text)
            self._has_thought, self._is_new_thought = True, False
        elif kind == "response.output_item.added" and event["item"].get("type") == "function_call":
            item = event["item"]
            index = self._calls[event.get("output_index")] = len(self._calls)
            function = {"name": item.get("name"), "arguments": ""}
            yield chat_delta(tool_calls=[{"index": index, "id": item.get("call_id"), "function": function}])
        elif kind == "response.function_call_arguments.delta" and event.get("output_index") in self._calls:
            index = self._calls[event["output_index"]]
            yield chat_delta(tool_calls=[{"index": index, "function": {"arguments": text}}])
        elif kind == "response.output_item.done":
            self._items.append(event["item"])
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            response = event["response"]
            yield parse_reply({**response, "output": response.get("output") or self._items})
        elif kind == "error":
            yield parse_reply({"error": event.get("error") or event})
