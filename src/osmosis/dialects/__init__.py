"""The APIs in which models are asked, as pure functions: requests become a `call.Call`, a model's answer a reply. Our
own model client takes the other way: a call becomes a request, a reply the internal form."""

from collections.abc import Callable
from dataclasses import dataclass

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import chat, gemini, messages, responses
from osmosis.dialects.call import Call, EndpointError, Envelope, ReplyStream
from osmosis.records.run.rollout import Completion

__all__ = [
    "CHAT",
    "DIALECTS",
    "GEMINI",
    "MESSAGES",
    "RESPONSES",
    "Call",
    "Dialect",
    "EndpointError",
    "Envelope",
    "dialect_of_path",
]


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    parse: Callable[[JsonObject], Call]  # returns the call of a request; raises `EndpointError` 400
    render: Callable[[Call, Completion, Envelope], JsonObject]
    stream: type[ReplyStream]
    error_body: Callable[[EndpointError], JsonObject]


CHAT = Dialect("chat", chat.parse, chat.render, chat.ChatStream, chat.error_body)
MESSAGES = Dialect("messages", messages.parse, messages.render, messages.MessagesStream, messages.error_body)
RESPONSES = Dialect("responses", responses.parse, responses.render, responses.ResponsesStream, responses.error_body)
GEMINI = Dialect("gemini", gemini.parse, gemini.render, gemini.GeminiStream, gemini.error_body)
DIALECTS = {dialect.name: dialect for dialect in (CHAT, MESSAGES, RESPONSES, GEMINI)}


def dialect_of_path(path: str) -> Dialect:
    if "/models/" in path or path.startswith("/v1beta/"):
        return GEMINI
    if "/messages" in path:
        return MESSAGES
    return RESPONSES if "/responses" in path else CHAT
