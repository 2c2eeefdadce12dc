"""OpenAI's Responses: input items in, output items out; reasoning items carry our handle as encrypted content.
https://platform.openai.com/docs/api-reference/responses. Stateless here: `previous_response_id`, `conversation`,
`background` and the items of built-in tools are refused by name; our own request stores nothing at the provider. What
it cannot say: several choices, stop texts, names of users, reasoning without encrypted items."""

from collections.abc import Iterator

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import call as dialect, chat
from osmosis.records.run.rollout import Category, Completion, Message

SAME = ("temperature", "top_p", "parallel_tool_calls", "seed", "top_k", "stop")
IGNORED = (
    *("client_metadata", "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_retention", "reasoning"),
    *("safety_identifier", "service_tier", "truncation", "user"),
)
REFUSED = {
    "previous_response_id": "answers are not stored here: send the whole conversation as input",
    "conversation": "conversations are not stored here: send the whole conversation as input",
    "background": "an answer comes at once or as a stream",
    "prompt": "stored prompts are not known here: send the text",
}
UNASKED = ("web_search", "web_search_preview", "tool_search", "image_generation")
"""Tools of the provider's servers that one harness declares whatever its settings: left out, and recorded."""
_CUSTOM = "custom"


def parse(body: JsonObject) -> dialect.Call:
    for key, reason in REFUSED.items():
        if body.get(key):
            dialect.bad_request(f"{key} is not supported: {reason}")
    call = dialect.Call([], None, model=str(body.get("model") or ""), stream=bool(body.get("stream")))
    call.left_out += [key for key in IGNORED if body.get(key)]
    if body.get("instructions"):
        call.messages.append({"role": "system", "content": str(body["instructions"])})
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else dialect.objects(items, "input")
    for number, item in enumerate(items):
        _add_item(call, item, f"input[{number}]")
    for tool in dialect.objects(body.get("tools"), "tools"):
        _add_tool(call, tool)
    call.tools = call.tools or None
    params = call.params
    params.update({key: body[key] for key in SAME if body.get(key) is not None})
    if body.get("max_output_tokens") is not None:
        params["max_tokens"] = body["max_output_tokens"]
    if (choice := body.get("tool_choice")) is not None:
        if isinstance(choice, dict):
            if choice.get("type") not in ("function", _CUSTOM):
                dialect.refuse_tool(choice.get("type"))
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        params["tool_choice"] = choice
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        schema = {key: form[key] for key in ("name", "schema", "strict", "description") if form.get(key) is not None}
        params["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") == "json_object":
        params["response_format"] = {"type": "json_object"}
    return call


def _add_tool(call: dialect.Call, tool: JsonObject, namespace: str = "") -> None:
    kind, name = tool.get("type"), str(tool.get("name") or "")
    call.tools = call.tools or []
    if kind == "namespace":
        for sub in dialect.objects(tool.get("tools"), f"tools.{name}"):
            _add_tool(call, sub, name)
    elif kind == "function":
        full_name = f"{namespace}__{name}" if namespace else name
        if namespace:
            call.native_tools[full_name] = (namespace, name)
        strict = tool.get("strict") or None  # false is what chat completions take for granted
        call.tools.append(dialect.function_tool(full_name, tool.get("description"), tool.get("parameters"), strict))
    elif kind == _CUSTOM:
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        call.native_tools[name] = (_CUSTOM, name)
        call.tools.append(dialect.function_tool(name, tool.get("description"), schema))
    elif kind in UNASKED:
        call.left_out.append(f"tool {kind}")
    else:
        dialect.refuse_tool(kind)


def _add_item(call: dialect.Call, item: JsonObject, where: str) -> None:
    kind = item.get("type") or "message"
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        parts = [{"type": "input_text", "text": output}] if isinstance(output, str) else dialect.objects(output, where)
        content = dialect.join_parts([_part(part) for part in parts])
        call.messages.append({"role": "tool", "tool_call_id": str(item.get("call_id")), "content": content})
    elif kind == "message" and item.get("role") != "assistant":
        written = item.get("content")
        if not isinstance(written, str):
            written = dialect.join_parts([_part(part) for part in dialect.objects(written, f"{where}.content")])
        role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
        if role not in ("user", "system"):
            dialect.bad_request(f"{where}.role must be user, assistant, system or developer")
        call.messages.append({"role": role, "content": written})
    else:
        add_to_assistant(call, item, kind)


def add_to_assistant(call: dialect.Call, item: JsonObject, kind: str) -> None:
    last = call.messages[-1] if call.messages else {}
    ends = kind == "reasoning" and (last.get("content") is not None or last.get("tool_calls"))
    if last.get("role") != "assistant" or ends:
        call.handles[len(call.messages)] = []
        last = {"role": "assistant", "content": None}
        call.messages.append(last)
    handles = call.handles[len(call.messages) - 1]
    if kind == "message":
        content = item.get("content")
        parts = [{"text": content}] if isinstance(content, str) else dialect.objects(content, "content")
        texts = [str(part.get("text") or part.get("refusal") or "") for part in parts]
        last["content"] = (last["content"] or "") + "".join(texts)
        if "tool_calls" in last:  # keys in the order of chat completions, so that equal messages are equal text
            last["tool_calls"] = last.pop("tool_calls")
    elif kind == "reasoning":
        parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
        if text := "\n".join(str(part["text"]) for part in parts if part.get("text")):
            last["reasoning_content"] = text
        if item.get("encrypted_content"):
            last["thinking_blocks"] = [*last.get("thinking_blocks", ()), item]
            handles.append(str(item["encrypted_content"]))
    elif kind in ("function_call", "custom_tool_call"):
        name, arguments = str(item.get("name")), item.get("arguments") or ""
        if kind == "custom_tool_call":
            arguments = orjson.dumps({"input": item.get("input") or ""}).decode()
        if item.get("namespace"):
            name = f"{item['namespace']}__{name}"
        last.setdefault("tool_calls", []).append(dialect.tool_call(str(item.get("call_id")), name, arguments))
        handles.append(str(item.get("call_id")))
    else:
        dialect.refuse_tool(f"an item of type {kind}")
    if item.get("id"):
        handles.append(str(item["id"]))


def _part(part: JsonObject) -> JsonObject:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "summary_text"):
        return {"type": "text", "text": str(part.get("text") or "")}
    if kind == "input_image" and part.get("image_url"):
        return dialect.image_part(str(part["image_url"]))
    if kind == "input_file" and (url := part.get("file_data") or part.get("file_url")):
        return dialect.file_part(str(url), part.get("filename"))
    dialect.bad_request(f"content of type {kind} without its data is not supported: send it inline")


def render(call: dialect.Call, reply: Completion, envelope: dialect.Envelope) -> JsonObject:
    output: list[JsonObject] = []
    if reasoning := dialect.reasoning_of(reply.message):
        output.append(_reasoning(envelope, reasoning))
    if text := dialect.answer_text(reply.message):
        output.append(_message(envelope, text))
    for index, tool in enumerate(reply.message.get("tool_calls") or ()):
        call_id, function = envelope.claim(str(tool.get("id") or f"call_{index}")), tool["function"]
        item = _function_call(
            call, envelope, index, call_id, str(function.get("name")), dialect.arguments_text(function)
        )
        output.append(item)
    return _response(call, envelope, output, reply)


def _reasoning(envelope: dialect.Envelope, text: str) -> JsonObject:
    summary = [{"type": "summary_text", "text": text}] if text else []
    item = {"type": "reasoning", "id": f"rs_{envelope.handle}", "summary": summary}
    return {**item, "encrypted_content": envelope.handle, "status": "completed"}


def _message(envelope: dialect.Envelope, text: str, status: str = "completed") -> JsonObject:
    parts = [{"type": "output_text", "text": text, "annotations": []}] if status == "completed" else []
    return {"type": "message", "id": f"msg_{envelope.handle}", "role": "assistant", "status": status, "content": parts}


def _function_call(
    call: dialect.Call, envelope: dialect.Envelope, index: int, call_id: str, name: str, arguments: str
) -> JsonObject:
    head = {"id": f"fc_{envelope.handle}_{index}", "call_id": call_id, "status": "completed"}
    kind, native_name = call.native_tools.get(name, ("", name))
    if kind == _CUSTOM:
        value = dialect.arguments_object({"arguments": arguments})
        text = str(value["input"]) if "input" in value else arguments
        return {"type": "custom_tool_call", **head, "name": name, "input": text}
    namespace = {"namespace": kind} if kind else {}
    return {"type": "function_call", **head, "name": native_name, **namespace, "arguments": arguments}


def _response(
    call: dialect.Call, envelope: dialect.Envelope, output: list[JsonObject], reply: Completion | None
) -> JsonObject:
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    reason = reasons.get(reply.finish_reason or "") if reply else None
    return {
        "id": f"resp_{envelope.handle}",
        "object": "response",
        "created_at": envelope.created,
        "status": "in_progress" if reply is None else "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "metadata": {},
        "model": envelope.model,
        "output": output,
        "parallel_tool_calls": call.params.get("parallel_tool_calls", True),
        "temperature": call.params.get("temperature"),
        "top_p": call.params.get("top_p"),
        "tool_choice": "auto",
        "tools": [],
        "store": False,
        "usage": usage_body(reply) if reply else None,
    }


def usage_body(reply: Completion) -> JsonObject:
    usage = reply.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def error_body(error: dialect.EndpointError) -> JsonObject:
    return {"error": {**chat.error_body(error)["error"], "code": _code(error), "param": None}}


def _code(error: dialect.EndpointError) -> str:
    names = {Category.CONTEXT_LENGTH.value: "context_length_exceeded", Category.AUTH.value: "invalid_api_key"}
    return names.get(error.code, "server_is_overloaded" if error.status == 503 else error.code)


class ResponsesStream(dialect.ItemStream):
    """Events of each output item in turn, numbered; one item is open at a time."""

    def __init__(self, call: dialect.Call, envelope: dialect.Envelope) -> None:
        super().__init__(call, envelope)
        self._number = -1
        self._output: list[JsonObject] = []
        self._open: object = None
        self._text_so_far = ""
        self._call_head: tuple[str, str] = ("", "")

    def begin(self) -> bytes:
        response = _response(self.call, self.envelope, [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def on_text(self, text: str) -> bytes:
        start = b""
        if self._open != "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            start = self._start("message", _message(self.envelope, "", "in_progress"))
            start += self._of_item("response.content_part.added", content_index=0, part=part)
        self._text_so_far += text
        return start + self._of_item("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def on_reasoning(self, text: str) -> bytes:
        start = b""
        if self._open != "reasoning":
            part = {"type": "summary_text", "text": ""}
            item = {"type": "reasoning", "id": f"rs_{self.envelope.handle}", "summary": [], "status": "in_progress"}
            start = self._start("reasoning", item)
            start += self._of_item("response.reasoning_summary_part.added", summary_index=0, part=part)
        self._text_so_far += text
        return start + self._of_item("response.reasoning_summary_text.delta", summary_index=0, delta=text)

    def on_call(self, index: int, call_id: str, name: str) -> bytes:
        closed = self._close()
        self._call_head = (call_id, name)
        return closed + self._start(index, {**self._call(index, ""), "status": "in_progress"})

    def on_arguments(self, index: int, text: str) -> bytes:
        if self._open != index:
            return b""
        self._text_so_far += text
        if self._is_custom:
            return b""
        return self._of_item("response.function_call_arguments.delta", delta=text)

    def end(self, reply: Completion) -> bytes:
        closed = self._close()
        response = _response(self.call, self.envelope, self._output, reply)
        return closed + self._event(f"response.{response['status']}", response=response)

    def fail(self, error: dialect.EndpointError) -> bytes:
        response = _response(self.call, self.envelope, self._output, None)
        failure = {"code": _code(error), "message": error.message}
        return self._event("response.failed", response={**response, "status": "failed", "error": failure})

    @property
    def _is_custom(self) -> bool:
        return self.call.native_tools.get(self._call_head[1], ("", ""))[0] == _CUSTOM

    def _call(self, index: int, arguments: str) -> JsonObject:
        return _function_call(self.call, self.envelope, index, *self._call_head, arguments)

    def _start(self, key: object, item: JsonObject) -> bytes:
        closed = self._close()
        self._open, self._text_so_far, self._item_id = key, "", item["id"]
        return closed + self._event("response.output_item.added", output_index=len(self._output), item=item)

    def _close(self) -> bytes:
        key, text = self._open, self._text_so_far
        self._open = None
        if key is None:
            return b""
        if key == "message":
            item = _message(self.envelope, text)
            part = item["content"][0]
            done = self._of_item("response.output_text.done", content_index=0, text=text, logprobs=[])
            done += self._of_item("response.content_part.done", content_index=0, part=part)
        elif key == "reasoning":
            item = _reasoning(self.envelope, text)
            part = item["summary"][0]
            done = self._of_item("response.reasoning_summary_text.done", summary_index=0, text=text)
            done += self._of_item("response.reasoning_summary_part.done", summary_index=0, part=part)
        else:
            assert isinstance(key, int)
            item = self._call(key, text)
            if self._is_custom:
                done = self._of_item("response.custom_tool_call_input.delta", delta=item["input"])
                done += self._of_item("response.custom_tool_call_input.done", input=item["input"])
            else:
                fields = {"name": item["name"], "arguments": item["arguments"]}
                done = self._of_item("response.function_call_arguments.done", **fields)
        done += self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        return done

    def _of_item(self, kind: str, **fields: object) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=len(self._output), **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        self._number += 1
        return dialect.event({"type": kind, "sequence_number": self._number, **fields}, kind)


ENCRYPTED = "reasoning.encrypted_content"
_AT = "before_call"  # Key of a reasoning item between the tool calls of an answer: the number of calls before it
_STATUSES = {"context_length_exceeded": "400", "invalid_prompt": "400", "insufficient_quota": "429"}
_FINISHES = {"max_output_tokens": "length", "content_filter": "content_filter"}


def render_request(call: dialect.Call) -> JsonObject:
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
    text = content if isinstance(content, str) else [_content(part) for part in dialect.parts_of(content)]
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": text}]
    if role != "assistant":
        return [{"type": "message", "role": "developer" if role == "system" else role, "content": text}]
    items: list[JsonObject] = []
    if content is not None:
        items.append({"type": "message", "role": "assistant", "content": dialect.text_of(content)})
    start = len(items)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = {"name": function.get("name"), "arguments": dialect.arguments_text(function)}
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
    kind, url, name = dialect.url_of_part(part)
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
        dialect.bad_request("there is no output")
    call = dialect.Call([])
    for item in dialect.objects(body["output"], "output"):
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
    return dialect.chat_reply(message, finish, counts, body)


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
            yield dialect.chat_delta(content=text)
        elif kind in ("response.reasoning_summary_part.added", "response.content_part.added"):
            self._is_new_thought = self._has_thought
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            yield dialect.chat_delta(reasoning_content=f"\n{text}" if self._is_new_thought else text)
            self._has_thought, self._is_new_thought = True, False
        elif kind == "response.output_item.added" and event["item"].get("type") == "function_call":
            item = event["item"]
            index = self._calls[event.get("output_index")] = len(self._calls)
            function = {"name": item.get("name"), "arguments": ""}
            yield dialect.chat_delta(tool_calls=[{"index": index, "id": item.get("call_id"), "function": function}])
        elif kind == "response.function_call_arguments.delta" and event.get("output_index") in self._calls:
            index = self._calls[event["output_index"]]
            yield dialect.chat_delta(tool_calls=[{"index": index, "function": {"arguments": text}}])
        elif kind == "response.output_item.done":
            self._items.append(event["item"])
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            response = event["response"]
            yield parse_reply({**response, "output": response.get("output") or self._items})
        elif kind == "error":
            yield parse_reply({"error": event.get("error") or event})
