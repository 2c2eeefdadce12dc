"""The client's side of each dialect: requests of a call, and replies as chat completions. Those of Messages and
Responses are the product's own; what it parses and renders of the others, tests build and read with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import CHAT, GEMINI, MESSAGES, RESPONSES, Call, Dialect, messages, responses
from osmosis.dialects.call import (
    Envelope,
    arguments_object,
    chat_reply,
    objects,
    parts_of,
    reasoning_of,
    split_data_url,
    text_of,
    url_of_part,
)
from osmosis.dialects.chat import ChatStream
from osmosis.dialects.gemini import CHOICES, PARAMS, _add_model
from osmosis.records.run.rollout import Completion, Message


def build(dialect: Dialect, call: Call) -> JsonObject:
    return BUILD[dialect.name](call)


def read(dialect: Dialect, body: JsonObject) -> JsonObject:
    return READ[dialect.name](body)


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
    return chat_reply(message, finish, counts, {"model": body.get("modelVersion"), "id": body.get("responseId")})


def chat_build(call: Call) -> JsonObject:
    tools = {"tools": call.tools} if call.tools else {}
    stream = {"stream": True, "stream_options": {"include_usage": call.with_usage}} if call.stream else {}
    return {**call.params, "model": call.model, "messages": call.messages, **tools, **stream}


def chat_read(body: JsonObject) -> JsonObject:
    return body


BUILD: dict[str, Callable[[Call], JsonObject]] = {
    CHAT.name: chat_build,
    MESSAGES.name: messages.render_request,
    RESPONSES.name: responses.render_request,
    GEMINI.name: gemini_build,
}
READ: dict[str, Callable[[JsonObject], JsonObject]] = {
    CHAT.name: chat_read,
    MESSAGES.name: messages.parse_reply,
    RESPONSES.name: responses.parse_reply,
    GEMINI.name: gemini_read,
}


def completion_events(done: Completion, *, model: str, with_usage: bool) -> Iterator[bytes]:
    """Yield a completion that was never streamed as server-sent events: role, text, tool calls, finish reason, usage,
    `[DONE]`."""
    stream = ChatStream(Call([], with_usage=with_usage), Envelope(done.model or model, raw_id=done.raw_id))
    yield stream.begin()
    yield from stream.rest(done)
