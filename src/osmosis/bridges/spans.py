"""Spans of OTLP traces and the messages in them, by the conventions for generative AI; other forms are passed over."""

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from osmosis.base.jsonable import JsonObject, objects_in
from osmosis.bridges.logs import as_text
from osmosis.records.run.rollout import Message

OPERATIONS = ("chat", "text_completion", "generate_content")


@dataclass(slots=True)
class TracedCall:
    id: str  # `TRACE:SPAN`, in hexadecimal
    model: str
    messages: list[Message]  # Empty where the application did not capture content
    answer: str


def read_calls(document: JsonObject) -> Iterator[TracedCall]:
    for span in iterate_spans(document):
        attributes = read_attributes(span)
        model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
        if attributes.get("gen_ai.operation.name", "chat") in OPERATIONS and model and span.get("spanId"):
            for event in objects_in(span.get("events")):
                attributes = read_attributes(event) | attributes
            messages, answers = read_conversation(attributes)
            answer = next((message["content"] for message in answers if message["content"]), "")
            yield TracedCall(f"{span.get('traceId')}:{span['spanId']}", str(model), messages, answer)


def iterate_spans(document: JsonObject) -> Iterator[JsonObject]:
    for resource in objects_in(document.get("resourceSpans")):
        for scope in objects_in(resource.get("scopeSpans")):
            yield from objects_in(scope.get("spans"))


def read_attributes(item: JsonObject) -> JsonObject:
    values = {str(pair.get("key")): pair.get("value") for pair in objects_in(item.get("attributes"))}
    return {key: next(iter(value.values()), None) for key, value in values.items() if isinstance(value, dict)}


def read_conversation(attributes: JsonObject) -> tuple[list[Message], list[Message]]:
    system = {"role": "system", "parts": load_json(attributes.get("gen_ai.system_instructions"))}
    texts = (attributes.get(f"gen_ai.{side}.messages") for side in ("input", "output"))
    messages, answers = map(objects_in, map(load_json, texts))
    question = [part for message in (system, *messages) for part in _split(message)]
    return question, [part for message in answers for part in _split(message)]


def load_json(value: object) -> object:
    try:
        return orjson.loads(value) if isinstance(value, str) else None
    except orjson.JSONDecodeError:
        return None


def _split(message: JsonObject) -> Iterator[Message]:
    parts = objects_in(message.get("parts")) or [{"type": "text", "content": message.get("content")}]
    for part in parts:
        if part.get("type") == "tool_call_response":
            yield {"role": "tool", "tool_call_id": str(part.get("id")), "content": as_text(part.get("response"))}
    text = "\n".join(str(part["content"]) for part in parts if part.get("type") == "text" and part.get("content"))
    functions = [
        (str(part.get("id")), {"name": str(part.get("name")), "arguments": as_text(part.get("arguments"))})
        for part in parts
        if part.get("type") == "tool_call"
    ]
    calls = [{"id": id_, "type": "function", "function": function} for id_, function in functions]
    if text or calls:
        yield {"role": str(message.get("role")), "content": text, **({"tool_calls": calls} if calls else {})}
