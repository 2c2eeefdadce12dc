"""The client's side of each dialect: requests of a call, and replies as chat completions. What the product parses and
renders, tests build and read with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import CHAT, GEMINI, MESSAGES, RESPONSES, Call, Dialect
from osmosis.dialects.call import Envelope, Reply, arguments_object, arguments_text, objects, reasoning_of, text_of
from osmosis.dialects.chat import ChatStream
from osmosis.dialects.gemini import CHOICES, PARAMS, _add_model
from osmosis.dialects.messages import SAME, _add_assistant, _tool_use
from osmosis.dialects.responses import _add_to_assistant
from osmosis.records.run.rollout import Message

FINISHES = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}


def build(dialect: Dialect, call: Call) -> JsonObject:
    return BUILD[dialect.name](call)


def read(dialect: Dialect, body: JsonObject) -> JsonObject:
    return READ[dialect.name](body)


def parts_of(content: object) -> list[JsonObject]:
    if isinstance(content, list):
        return [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in content]
    return [{"type": "text", "text": str(content)}] if content else []


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 of a data URL; None for any other."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    return head[5:].partition(";")[0], data


def url_of_part(part: JsonObject) -> tuple[str, str, str]:
    """Return kind (`image`, `file` or nothing), address and file name of a part."""
    if part.get("type") == "image_url":
        image = part.get("image_url")
        return "image", str(image.get("url") if isinstance(image, dict) else image), ""
    if part.get("type") == "file":
        file = part.get("file") or {}
        return "file", str(file.get("file_data") or ""), str(file.get("filename") or "")
    return "", "", ""


def chat_reply(
    message: Message, finish_reason: str, usage: JsonObject, *, model: object = None, raw_id: object = None
) -> JsonObject:
    """Build a chat completion, the internal form of another provider's reply."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"id": raw_id, "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def messages_build(call: Call) -> JsonObject:
    params = dict(call.params)
    body: JsonObject = {"model": call.model, "max_tokens": params.pop("max_completion_tokens", None) or 4096}
    messages = list(call.messages)
    if messages and messages[0].get("role") in ("system", "developer"):
        content = messages.pop(0)["content"]
        body["system"] = content if isinstance(content, str) else [messages_block(part) for part in content]
    body["messages"] = turns = []
    results: list[JsonObject] = []
    for message in messages:
        if message.get("role") == "tool":
            if not results:
                turns.append({"role": "user", "content": results})
            results.append(messages_tool_result(message))
            continue
        results = []
        turns.append(messages_turn(message))
    body["tools"] = [
        {
            "name": tool["function"]["name"],
            "input_schema": tool["function"].get("parameters") or {"type": "object"},
            **({"description": text} if (text := tool["function"].get("description")) else {}),
        }
        for tool in call.tools or ()
    ]
    body.update({key: params.pop(key) for key in SAME if key in params})
    stop = params.pop("stop", None)
    body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    body["tool_choice"] = messages_choice(params.pop("tool_choice", None), params.pop("parallel_tool_calls", True))
    form = params.pop("response_format", None) or {}
    if form.get("type") == "json_schema":
        schema = form["json_schema"].get("schema")
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if call.stream:
        body["stream"] = True
    return {key: value for key, value in {**params, **body}.items() if value not in (None, [])}


def messages_choice(choice: JsonObject | str | None, parallel: object) -> JsonObject | None:
    if choice is None and parallel is not False:
        return None
    single: JsonObject = {} if parallel is not False else {"disable_parallel_tool_use": True}
    if isinstance(choice, dict):
        return {"type": "tool", "name": (choice.get("function") or {}).get("name"), **single}
    kind = {"required": "any", None: "auto"}.get(choice, choice)
    return {"type": kind, **(single if kind != "none" else {})}


def messages_turn(message: Message) -> JsonObject:
    role, content = message.get("role"), message.get("content")
    if role != "assistant":
        known_role = "system" if role in ("system", "developer") else "user"
        text = content if isinstance(content, str) else [messages_block(part) for part in parts_of(content)]
        return {"role": known_role, "content": text}
    blocks = [block for block in message.get("thinking_blocks") or () if "thinking" in block["type"]]
    if not blocks and (reasoning := reasoning_of(message)):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": ""})
    if text := text_of(content):
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or ():
        blocks.append(_tool_use(call.get("id"), call))
    return {"role": "assistant", "content": blocks}


def messages_tool_result(message: Message) -> JsonObject:
    content = message.get("content")
    text = content if isinstance(content, str) else [messages_block(part) for part in parts_of(content)]
    error = {"is_error": True} if message.get("is_error") else {}
    return {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": text, **error}


def messages_block(part: JsonObject) -> JsonObject:
    kind, url, name = url_of_part(part)
    if not kind:
        return {"type": "text", "text": str(part.get("text") or "")}
    inline = split_data_url(url)
    source = {"type": "base64", "media_type": inline[0], "data": inline[1]} if inline else {"type": "url", "url": url}
    title = {"title": name} if name else {}
    return {"type": "image" if kind == "image" else "document", "source": source, **title}


def messages_read(body: JsonObject) -> JsonObject:
    """Return a reply of the provider as a chat completion."""
    call = Call([])
    _add_assistant(call, objects(body.get("content"), "content"))
    usage = body.get("usage") or {}
    cached, written = (int(usage.get(f"cache_{kind}_input_tokens") or 0) for kind in ("read", "creation"))
    counts = {
        "prompt_tokens": int(usage.get("input_tokens") or 0) + cached + written,
        "completion_tokens": int(usage.get("output_tokens") or 0),
        "prompt_tokens_details": {"cached_tokens": cached, "cache_creation_tokens": written},
    }
    finish = FINISHES.get(str(body.get("stop_reason")), "stop")
    return chat_reply(call.messages[0], finish, counts, model=body.get("model"), raw_id=body.get("id"))


def responses_build(call: Call) -> JsonObject:
    params = dict(call.params)
    body: JsonObject = {"model": call.model, "input": [item for m in call.messages for item in responses_items(m)]}
    body["tools"] = [{"type": "function", **tool["function"]} for tool in call.tools or ()]
    body["max_output_tokens"] = params.pop("max_completion_tokens", None) or params.pop("max_tokens", None)
    if isinstance(choice := params.pop("tool_choice", None), dict):
        choice = {"type": "function", "name": choice["function"]["name"]}
    body["tool_choice"] = choice
    form = params.pop("response_format", None) or {}
    if form.get("type") == "json_schema":
        body["text"] = {"format": {"type": "json_schema", **form["json_schema"]}}
    elif form.get("type") == "json_object":
        body["text"] = {"format": {"type": "json_object"}}
    if call.stream:
        body["stream"] = True
    body["store"] = False
    body["include"] = ["reasoning.encrypted_content"]
    return {key: value for key, value in {**params, **body}.items() if value not in (None, [])}


def responses_items(message: Message) -> list[JsonObject]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else [responses_content(part) for part in parts_of(content)]
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}]
    if role != "assistant":
        text = content if isinstance(content, str) else [responses_content(part) for part in parts_of(content)]
        return [{"type": "message", "role": "developer" if role == "system" else role, "content": text}]
    items = [block for block in message.get("thinking_blocks") or () if block["type"] == "reasoning"]
    if not items and (reasoning := reasoning_of(message)):
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    if content is not None:
        text = [{"type": "output_text", "text": text_of(content), "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": text})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = {"name": function.get("name"), "arguments": arguments_text(function)}
        items.append({"type": "function_call", "call_id": call.get("id"), **arguments})
    return items


def responses_content(part: JsonObject) -> JsonObject:
    kind, url, name = url_of_part(part)
    if not kind:
        return {"type": "input_text", "text": str(part.get("text") or "")}
    if kind == "image":
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    named = {"filename": name} if name else {}
    return {"type": "input_file", "file_data" if url.startswith("data:") else "file_url": url, **named}


def responses_read(body: JsonObject) -> JsonObject:
    """Return a reply of the provider as a chat completion."""
    call = Call([])
    for item in objects(body.get("output"), "output"):
        _add_to_assistant(call, item, str(item.get("type")))
    message = call.messages[0] if call.messages else {"role": "assistant", "content": ""}
    reason = (body.get("incomplete_details") or {}).get("reason")
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    finish = {"max_output_tokens": "length", "content_filter": "content_filter"}.get(str(reason), finish)
    usage = body.get("usage") or {}
    counts = {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }
    return chat_reply(message, finish, counts, model=body.get("model"), raw_id=body.get("id"))


def gemini_build(call: Call) -> JsonObject:
    messages, names = list(call.messages), {}
    contents: list[JsonObject] = []
    body: JsonObject = {"contents": contents}
    if messages and messages[0].get("role") in ("system", "developer"):
        body["systemInstruction"] = {"parts": [gemini_render_part(p) for p in parts_of(messages.pop(0)["content"])]}
    for message in messages:
        for tool in message.get("tool_calls") or ():
            names[tool.get("id")] = tool["function"].get("name")
        contents.append(gemini_content(message, names))
    if call.tools:
        body["tools"] = [{"functionDeclarations": [gemini_declaration(tool["function"]) for tool in call.tools]}]
    config = {key: call.params[ours] for key, ours in PARAMS.items() if ours in call.params}
    if isinstance(config.get("stopSequences"), str):
        config["stopSequences"] = [config["stopSequences"]]
    form = call.params.get("response_format") or {}
    if form:
        config["responseMimeType"] = "application/json"
    if form.get("type") == "json_schema":
        config["responseJsonSchema"] = form["json_schema"].get("schema")
    if config:
        body["generationConfig"] = config
    choice = call.params.get("tool_choice")
    if choice:
        mode = next((mode for mode, ours in CHOICES.items() if ours == choice), "ANY")
        only = {"allowedFunctionNames": [choice["function"]["name"]]} if isinstance(choice, dict) else {}
        body["toolConfig"] = {"functionCallingConfig": {"mode": mode, **only}}
    return body


def gemini_declaration(function: JsonObject) -> JsonObject:
    described = {"description": function["description"]} if function.get("description") else {}
    return {"name": function["name"], **described, "parametersJsonSchema": function.get("parameters") or {}}


def gemini_content(message: Message, names: dict[object, object]) -> JsonObject:
    role = message.get("role")
    if role == "tool":
        call_id = message.get("tool_call_id")
        response = {"output": text_of(message.get("content"))}
        result = {"id": call_id, "name": names.get(call_id) or "tool", "response": response}
        return {"role": "user", "parts": [{"functionResponse": result}]}
    parts = []
    if role == "assistant" and (reasoning := reasoning_of(message)):
        parts.append({"text": reasoning, "thought": True})
    if message.get("content") is not None:
        parts += [gemini_render_part(part) for part in parts_of(message["content"])] or [{"text": ""}]
    for tool in message.get("tool_calls") or ():
        function = tool["function"]
        function_call = {"id": tool.get("id"), "name": function.get("name"), "args": arguments_object(function)}
        parts.append({"functionCall": function_call})
    return {"role": "model" if role == "assistant" else "user", "parts": parts}


def gemini_render_part(part: JsonObject) -> JsonObject:
    kind, url, _ = url_of_part(part)
    if not kind:
        return {"text": str(part.get("text") or "")}
    inline = split_data_url(url)
    if inline:
        return {"inlineData": {"mimeType": inline[0], "data": inline[1]}}
    return {"fileData": {"mimeType": "image/*" if kind == "image" else "application/octet-stream", "fileUri": url}}


def gemini_read(body: JsonObject) -> JsonObject:
    """Return a reply of the provider as a chat completion."""
    candidate = next(iter(objects(body.get("candidates"), "candidates")), {})
    call = Call([])
    _add_model(call, objects((candidate.get("content") or {}).get("parts"), "parts"))
    message = call.messages[0]
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    finish = {"MAX_TOKENS": "length", "SAFETY": "content_filter"}.get(str(candidate.get("finishReason")), finish)
    usage = body.get("usageMetadata") or {}
    thought = int(usage.get("thoughtsTokenCount") or 0)
    counts = {
        "prompt_tokens": usage.get("promptTokenCount"),
        "completion_tokens": int(usage.get("candidatesTokenCount") or 0) + thought,
        "prompt_tokens_details": {"cached_tokens": usage.get("cachedContentTokenCount")},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    return chat_reply(message, finish, counts, model=body.get("modelVersion"), raw_id=body.get("responseId"))


def chat_build(call: Call) -> JsonObject:
    tools = {"tools": call.tools} if call.tools else {}
    stream = {"stream": True, "stream_options": {"include_usage": call.with_usage}} if call.stream else {}
    return {**call.params, "model": call.model, "messages": call.messages, **tools, **stream}


def chat_read(body: JsonObject) -> JsonObject:
    return body


BUILD: dict[str, Callable[[Call], JsonObject]] = {
    CHAT.name: chat_build,
    MESSAGES.name: messages_build,
    RESPONSES.name: responses_build,
    GEMINI.name: gemini_build,
}
READ: dict[str, Callable[[JsonObject], JsonObject]] = {
    CHAT.name: chat_read,
    MESSAGES.name: messages_read,
    RESPONSES.name: responses_read,
    GEMINI.name: gemini_read,
}


def completion_events(done: Reply, *, model: str, with_usage: bool) -> Iterator[bytes]:
    """Yield a completion that was never streamed as server-sent events: role, text, tool calls, finish reason, usage,
    `[DONE]`."""
    stream = ChatStream(Call([], with_usage=with_usage), Envelope(done.model or model, raw_id=done.raw_id))
    yield stream.begin()
    yield from stream.rest(done)
