"""Google's generateContent (https://ai.google.dev/api/generate-content). It cannot say how the model spelled a tool's
arguments, errors of tools, system texts inside the conversation (they become the user's), files by name."""

import re

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import call as dialect
from osmosis.records.run.rollout import Completion

PARAMS = {
    "temperature": "temperature", "topP": "top_p", "topK": "top_k", "maxOutputTokens": "max_tokens",
    "stopSequences": "stop", "seed": "seed", "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}  # fmt: skip
CHOICES = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    424: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def parse(body: JsonObject) -> dialect.Call:
    body, call = _camel(body), dialect.Call([], None)
    if body.get("cachedContent"):
        dialect.bad_request("cachedContent is not stored here: send the whole conversation")
    call.left_out += [key for key in ("safetySettings", "labels", "serviceTier") if body.get(key)]
    system = body.get("systemInstruction")
    if isinstance(system, dict):
        parts = [_part(part) for part in dialect.objects(system.get("parts"), "systemInstruction.parts")]
        call.messages.append({"role": "system", "content": dialect.join_parts(parts)})
    pending: list[tuple[str, str]] = []
    for number, content in enumerate(dialect.objects(body.get("contents"), "contents")):
        parts = dialect.objects(content.get("parts"), f"contents[{number}].parts")
        if content.get("role") == "model":
            pending = _add_model(call, parts)
        else:
            _add_user(call, parts, pending)
    for tool in dialect.objects(body.get("tools"), "tools"):
        for kind, declared in _camel(tool).items():
            if kind != "functionDeclarations":
                dialect.refuse_tool(kind)
            call.tools = [*(call.tools or ()), *(_tool(item) for item in dialect.objects(declared, kind))]
    _add_params(call, body)
    return call


def _add_params(call: dialect.Call, body: JsonObject) -> None:
    config = _camel(body.get("generationConfig") or {})
    call.params.update({ours: config[key] for key, ours in PARAMS.items() if config.get(key) is not None})
    if config.get("candidateCount") not in (None, 1):
        dialect.bad_request("candidateCount must be 1")
    if config.get("thinkingConfig"):
        call.left_out.append("generationConfig.thinkingConfig")
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema:
        named = {"name": "answer", "schema": _lower_types(schema)}
        call.params["response_format"] = {"type": "json_schema", "json_schema": named}
    elif config.get("responseMimeType") == "application/json":
        call.params["response_format"] = {"type": "json_object"}
    choice = _camel(_camel(body.get("toolConfig") or {}).get("functionCallingConfig") or {})
    if choice.get("mode"):
        names = choice.get("allowedFunctionNames") or []
        named_tool = {"type": "function", "function": {"name": names[0]}} if len(names) == 1 else None
        call.params["tool_choice"] = named_tool or CHOICES.get(choice["mode"], "auto")


def _camel(fields: JsonObject) -> JsonObject:
    if not any("_" in key for key in fields):
        return fields
    return {re.sub("_(.)", lambda match: match[1].upper(), key): value for key, value in fields.items()}


def _tool(declared: JsonObject) -> JsonObject:
    declared = _camel(declared)
    schema = declared.get("parametersJsonSchema") or declared.get("parameters")
    return dialect.function_tool(declared.get("name"), declared.get("description"), _lower_types(schema))


def _lower_types(schema: object) -> object:
    if isinstance(schema, list):
        return [_lower_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _lower_types(value)
        for key, value in schema.items()
    }


def _add_model(call: dialect.Call, parts: list[JsonObject]) -> list[tuple[str, str]]:
    texts, thoughts, calls, handles = list[str](), list[str](), list[JsonObject](), list[str]()
    for part in map(_camel, parts):
        if signature := part.get("thoughtSignature"):
            handles.append(str(signature))
        if function := part.get("functionCall"):
            call_id = str(function.get("id") or f"call_{len(call.messages)}_{len(calls)}")
            calls.append(dialect.tool_call(call_id, str(function.get("name")), function.get("args")))
            handles += [call_id] if function.get("id") else []
        elif part.get("thought"):
            thoughts.append(str(part.get("text") or ""))
        elif "text" in part:
            texts.append(str(part["text"]))
        elif part.keys() - {"thoughtSignature"}:
            dialect.refuse_tool(f"a part with {next(iter(part))}")
    call.add_assistant(texts, "".join(thoughts), calls, handles)
    return [(str(entry["id"]), str(entry["function"]["name"])) for entry in calls]


def _add_user(call: dialect.Call, parts: list[JsonObject], pending: list[tuple[str, str]]) -> None:
    content: list[JsonObject] = []
    for part in map(_camel, parts):
        answer = part.get("functionResponse")
        if not answer:
            content.append(_part(part))
            continue
        name = answer.get("name")
        waiting = next((call_id for call_id, called in pending if called == name), "")
        call_id = str(answer.get("id") or waiting or f"call_{name}")
        pending[:] = [entry for entry in pending if entry[0] != call_id]
        call.messages.append({"role": "tool", "tool_call_id": call_id, "content": _result_text(answer.get("response"))})
    if content:
        call.messages.append({"role": "user", "content": dialect.join_parts(content)})


def _result_text(response: object) -> str:
    if isinstance(response, dict) and len(response) == 1:
        value = next(iter(response.values()))
        if isinstance(value, str) and next(iter(response)) in ("output", "result", "error"):
            return value
    return orjson.dumps(response).decode()


def _part(part: JsonObject) -> JsonObject:
    if "text" in part:
        return {"type": "text", "text": str(part["text"])}
    inline, linked = part.get("inlineData"), part.get("fileData")
    data = inline or linked
    if not isinstance(data, dict):
        dialect.refuse_tool(f"a part with {next(iter(part), 'nothing')}")
    data = _camel(data)
    # Some clients send base64 in the alphabet for URLs.
    base64 = str(data.get("data") or "").replace("-", "+").replace("_", "/")
    url = dialect.data_url(data.get("mimeType"), base64) if inline else str(data.get("fileUri"))
    return dialect.image_part(url) if str(data.get("mimeType")).startswith("image/") else dialect.file_part(url)


def render(call: dialect.Call, reply: Completion, envelope: dialect.Envelope) -> JsonObject:
    parts: list[JsonObject] = []
    if reasoning := dialect.reasoning_of(reply.message):
        parts.append({"text": reasoning, "thought": True})
    if text := dialect.answer_text(reply.message):
        parts.append({"text": text})
    parts += _calls(reply, envelope)
    if parts:
        parts[-1]["thoughtSignature"] = envelope.handle
    return _chunk(envelope, parts, reply)


def _calls(reply: Completion, envelope: dialect.Envelope) -> list[JsonObject]:
    calls = []
    for index, tool in enumerate(reply.message.get("tool_calls") or ()):
        call_id, function = envelope.claim(str(tool.get("id") or f"call_{index}")), tool["function"]
        function_call = {"id": call_id, "name": function.get("name"), "args": dialect.arguments_object(function)}
        calls.append({"functionCall": function_call})
    return calls


def _chunk(envelope: dialect.Envelope, parts: list[JsonObject], reply: Completion | None = None) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
    body = {"candidates": [candidate], "modelVersion": envelope.model, "responseId": envelope.handle}
    if reply is None:
        return body
    reasons = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
    candidate["finishReason"] = reasons.get(reply.finish_reason or "", "STOP")
    return {**body, "usageMetadata": usage_body(reply)}


def usage_body(reply: Completion) -> JsonObject:
    usage = reply.usage
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "totalTokenCount": usage.total_tokens,
    }


def error_body(error: dialect.EndpointError) -> JsonObject:
    default = "INTERNAL" if error.status >= 500 or error.status == dialect.MODEL_FAILED else "INVALID_ARGUMENT"
    status = STATUSES.get(error.status, default)
    return {"error": {"code": error.status, "message": error.message, "status": status}}


class GeminiStream(dialect.ItemStream):
    """Chunks of the answer's own shape; tool calls come whole, at the end."""

    def on_text(self, text: str) -> bytes:
        return dialect.event(_chunk(self.envelope, [{"text": text}]))

    def on_reasoning(self, text: str) -> bytes:
        return dialect.event(_chunk(self.envelope, [{"text": text, "thought": True}]))

    def on_call(self, index: int, call_id: str, name: str) -> bytes:
        return b""

    def on_arguments(self, index: int, text: str) -> bytes:
        return b""

    def end(self, reply: Completion) -> bytes:
        parts = _calls(reply, self.envelope) or [{"text": ""}]
        parts[-1]["thoughtSignature"] = self.envelope.handle
        return dialect.event(_chunk(self.envelope, parts, reply))

    def fail(self, error: dialect.EndpointError) -> bytes:
        return dialect.event(error_body(error))
