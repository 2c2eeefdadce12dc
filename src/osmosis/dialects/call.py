"""A model call and its reply in the one internal form, to which each dialect translates. The form is that of chat
completions, which rollouts, trajectories, pages and the trainer store: messages, tools and parameters. Text that a
model wrote (tool arguments, reasoning) stays as it was written. What only another dialect understands travels in
`thinking_blocks` of an assistant message, in that dialect's own shape.

`find_purpose` tells the calls of an agent program that are not the agent's (titles, probes, summaries, sub-agents) by
their marks; `normalize` takes from a call what changes although the conversation does not, so that a later call
continues an earlier one. The marks were read from recorded requests of the versions that docs/agents.md lists."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Category, Completion, Message

MODEL_FAILED = 424  # The model failed after our own retries: a status that no client library retries
OVERLOADED = 503  # Asking again later helps. Never 429, at which one harness gives up at once.
CHUNK_CHARS = 200


class EndpointError(Exception):
    def __init__(self, status: int, message: str, code: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.retry_after = retry_after
        """Seconds; None when asking again would not help."""


def bad_request(message: str) -> NoReturn:
    raise EndpointError(400, message, Category.BAD_REQUEST.value)


@dataclass(slots=True)
class Call:
    messages: list[Message]
    tools: list[JsonObject] | None = None
    params: JsonObject = field(default_factory=dict)
    model: str = ""
    stream: bool = False
    with_usage: bool = True  # whether a stream ends with the usage
    left_out: list[str] = field(default_factory=list)  # Fields and tools of the request without an effect here
    handles: dict[int, list[str]] = field(default_factory=dict)
    """Ids and opaque texts with which each assistant message came back, by its position."""
    native_tools: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Tools that the dialect does not declare as functions: (kind or namespace, name there) by name here."""

    def add_assistant(
        self, texts: list[str], reasoning: str, tool_calls: list[JsonObject], handles: list[str], **more: object
    ) -> None:
        optional = {"reasoning_content": reasoning, **more, "tool_calls": tool_calls}
        message = {"role": "assistant", "content": "".join(texts) if texts else None}
        self.handles[len(self.messages)] = [handle for handle in handles if handle]
        self.messages.append({**message, **{key: value for key, value in optional.items() if value}})


@dataclass(slots=True)
class Envelope:
    """The surroundings of a reply: the model's name, and the handle planted in every slot that clients return."""

    model: str
    handle: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    claim: Callable[[str], str] = str  # Returns the id to use for a tool call, unlike all others of the conversation
    raw_id: str | None = None  # the provider's id of the reply, where it is known before the first event
    created: int = field(default_factory=lambda: int(time.time()))


class ReplyStream(ABC):
    """The server-sent events of one reply: `begin`, each `delta` as it is sampled, then `finish` or `fail`."""

    def __init__(self, call: Call, envelope: Envelope) -> None:
        self.call = call
        self.envelope = envelope

    def begin(self) -> bytes:
        return b""

    @abstractmethod
    def delta(self, delta: JsonObject, logprobs: JsonObject | None = None) -> bytes: ...

    @abstractmethod
    def finish(self, reply: Completion) -> bytes:
        """Return what was not sent yet, all of a reply that came whole, and the end."""

    @abstractmethod
    def fail(self, error: EndpointError) -> bytes:
        """Return the dialect's error event: a stream that merely stopped would pass for a whole answer."""


class ItemStream(ReplyStream):
    """A stream of text, reasoning and tool calls. A dialect says how each looks; this class knows what was sent."""

    def __init__(self, call: Call, envelope: Envelope) -> None:
        super().__init__(call, envelope)
        self._sent = {"reasoning_content": "", "content": ""}
        self._arguments: dict[int, str] = {}

    def delta(self, delta: JsonObject, logprobs: JsonObject | None = None) -> bytes:
        events = [self._text(key, text) for key in self._sent if (text := _delta_text(delta, key))]
        for position, piece in enumerate(delta.get("tool_calls") or ()):
            function = piece.get("function") or {}
            index = piece.get("index", position)
            if index not in self._arguments:
                events.append(self._open_call(index, piece, function))
            if function.get("arguments"):
                events.append(self._more_arguments(index, function["arguments"]))
        return b"".join(events)

    def finish(self, reply: Completion) -> bytes:
        events = []
        for key, sent in list(self._sent.items()):
            text = reasoning_of(reply.message) if key == "reasoning_content" else answer_text(reply.message)
            if len(text) > len(sent) and text.startswith(sent):
                events.append(self._text(key, text[len(sent) :]))
        for index, tool_call in enumerate(reply.message.get("tool_calls") or ()):
            function = tool_call.get("function") or {}
            if index not in self._arguments:
                events.append(self._open_call(index, tool_call, function))
            arguments, sent = arguments_text(function), self._arguments[index]
            if len(arguments) > len(sent) and arguments.startswith(sent):
                events.append(self._more_arguments(index, arguments[len(sent) :]))
        return b"".join([*events, self.end(reply)])

    @abstractmethod
    def on_text(self, text: str) -> bytes: ...

    @abstractmethod
    def on_reasoning(self, text: str) -> bytes: ...

    @abstractmethod
    def on_call(self, index: int, call_id: str, name: str) -> bytes: ...

    @abstractmethod
    def on_arguments(self, index: int, text: str) -> bytes: ...

    @abstractmethod
    def end(self, reply: Completion) -> bytes: ...

    def _text(self, key: str, text: str) -> bytes:
        self._sent[key] += text
        return self.on_text(text) if key == "content" else self.on_reasoning(text)

    def _open_call(self, index: int, call: JsonObject, function: JsonObject) -> bytes:
        self._arguments[index] = ""
        return self.on_call(index, self.envelope.claim(call.get("id") or f"call_{index}"), function.get("name") or "")

    def _more_arguments(self, index: int, text: str) -> bytes:
        self._arguments[index] += text
        return self.on_arguments(index, text)


def _delta_text(delta: JsonObject, key: str) -> str:
    text = delta.get(key) or (delta.get("reasoning") if key == "reasoning_content" else None)
    return text if isinstance(text, str) else ""


def event(body: Mapping[str, object], name: str = "") -> bytes:
    data = b"data: " + orjson.dumps(body) + b"\n\n"
    return b"event: " + name.encode() + b"\n" + data if name else data


def objects(value: object, where: str) -> list[JsonObject]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        bad_request(f"{where} must be a list of objects")
    return value


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(part.get("text") or "" for part in parts if isinstance(part, dict) and part.get("text"))


def answer_text(message: Message) -> str:
    return text_of(message.get("content")) or str(message.get("refusal") or "")


def reasoning_of(message: Message) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if isinstance(reasoning, str) else ""


def join_parts(parts: list[JsonObject]) -> str | list[JsonObject]:
    return parts[0]["text"] if len(parts) == 1 and parts[0].get("type") == "text" else parts


def arguments_text(function: JsonObject) -> str:
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()


def arguments_object(function: JsonObject) -> JsonObject:
    text = arguments_text(function)
    try:
        value = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}


def tool_call(call_id: str, name: str, arguments: object) -> JsonObject:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def function_tool(name: object, description: object, schema: object, strict: object = None) -> JsonObject:
    if not isinstance(name, str) or not name:
        bad_request("a tool has no name")
    function: JsonObject = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def refuse_tool(kind: object) -> NoReturn:
    bad_request(f"{kind} is a tool of the provider's servers, which run none here: offer a function instead")


def data_url(media_type: object, data: object) -> str:
    return f"data:{media_type or 'application/octet-stream'};base64,{data or ''}"


def image_part(url: str) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url}}


def file_part(url: str, name: object = None) -> JsonObject:
    named = {"filename": name} if name else {}
    return {"type": "file", "file": {**named, "file_data": url}}


def parts_of(content: object) -> list[JsonObject]:
    if isinstance(content, list):
        return [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in content]
    return [{"type": "text", "text": str(content)}] if content else []


def url_of_part(part: JsonObject) -> tuple[str, str, str]:
    if part.get("type") == "image_url":
        image = part.get("image_url")
        return "image", str(image.get("url") if isinstance(image, dict) else image), ""
    if part.get("type") == "file":
        file = part.get("file") or {}
        return "file", str(file.get("file_data") or ""), str(file.get("filename") or "")
    return "", "", ""


def split_data_url(url: str) -> tuple[str, str] | None:
    head, comma, data = url.partition(",")
    return (head[5:].partition(";")[0], data) if comma and head.startswith("data:") else None


def chat_reply(message: Message, finish_reason: str, usage: JsonObject, body: JsonObject) -> JsonObject:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    head = {"id": body.get("id"), "object": "chat.completion", "model": body.get("model")}
    return {**head, "choices": [choice], "usage": usage}


def chat_delta(**delta: object) -> JsonObject:
    return {"choices": [{"index": 0, "delta": delta}]}


def estimate_tokens(messages: list[Message], tools: list[JsonObject] | None = None) -> int:
    return (len(orjson.dumps(messages, default=str)) + (len(orjson.dumps(tools, default=str)) if tools else 0)) // 4


AGENT = ""
SUBAGENT = "subagent"
COMPACTION = "compaction"
TITLE = "title"
ROUTER = "router"
PROBE = "probe"
SUGGESTION = "suggestion"
RETRY = "retry"
TRAINED = frozenset({AGENT, SUBAGENT, COMPACTION})  # Calls in which the model did the agent's work

BILLING = "x-anthropic-billing-header:"
"""First line of a system block of Claude Code; it depends on version and first prompt."""
_TITLES = (
    "you are a title generator",
    "generate a concise, sentence-case",
    "generate a short title",
    "you name coding",
)
_SUGGESTION = "[suggestion mode:"
_SUMMARIES = ("your task is to create a detailed summary of the conversation", "context checkpoint compaction")
_PROBES = ("please say 'hello, world'", "quota", "test", "say ok.")


def find_purpose(call: Call, headers: Mapping[str, str], system_text: str) -> str:
    """Return what a call is for; `system_text` is the system prompt before `normalize`."""
    if headers.get("x-claude-code-agent-id") or "cc_is_subagent=true" in system_text[:300]:
        return SUBAGENT
    metadata = headers.get("x-codex-turn-metadata", "")
    if "compact" in metadata and _turn_kind(metadata) == COMPACTION:
        return COMPACTION
    last = text_of(call.messages[-1].get("content")).strip() if call.messages else ""
    if last[: len(_SUGGESTION)].lower() == _SUGGESTION:
        return SUGGESTION
    if call.tools:
        return AGENT
    last = last.lower()
    head = system_text[:2000].lower()
    if any(mark in last for mark in _SUMMARIES) or any(mark in head for mark in _SUMMARIES):
        return COMPACTION
    if any(mark in head or last.startswith(mark) for mark in _TITLES):
        return TITLE
    if len(call.messages) <= 2 and (last in _PROBES or call.params.get("max_tokens") == 1):
        return PROBE
    if "response_format" in call.params and headers.get("user-agent", "").startswith("claude-cli"):
        return TITLE
    if "response_format" in call.params and "flash-lite" in call.model and "x-goog-api-key" in headers:
        return ROUTER
    return AGENT


def _turn_kind(metadata: str) -> str:
    try:
        turn: object = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        return ""
    return str(turn.get("request_kind", "")) if isinstance(turn, dict) else ""


def read_system(messages: list[Message]) -> str:
    return text_of(messages[0].get("content")) if messages and messages[0].get("role") == "system" else ""


def normalize(call: Call) -> None:
    """Take the billing line out, and join texts in several parts: which part ends where says nothing to a model."""
    for message in call.messages:
        content = message.get("content")
        if not isinstance(content, list) or not all(part.get("type") == "text" for part in content):
            continue
        texts = [part["text"] for part in content if not part["text"].startswith(BILLING)]
        message["content"] = "\n\n".join(texts)
