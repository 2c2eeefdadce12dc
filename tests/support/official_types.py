"""Requests checked against the types of the providers' own packages, to which unknown and missing fields are errors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from anthropic.types import RawMessageStreamEvent, message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import ResponseStreamEvent, response_create_params
from pydantic import TypeAdapter

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import CHAT, MESSAGES, RESPONSES, Dialect

SHAPES: dict[str, Any] = {
    CHAT.name: completion_create_params.CompletionCreateParamsStreaming,
    MESSAGES.name: message_create_params.MessageCreateParamsStreaming,
    RESPONSES.name: response_create_params.ResponseCreateParamsStreaming,
}
OLDER = {"temperature", "top_p", "top_k"}
"""Fields of Messages that its package names no more, and older models take."""


@lru_cache
def adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(SHAPES[name])


def check_request(dialect: Dialect, body: JsonObject) -> None:
    """Raise for a request that the provider's package would not accept."""
    if dialect.name in SHAPES:
        unknown = body.keys() - all_fields(SHAPES[dialect.name]) - (OLDER if dialect is MESSAGES else set())
        assert not unknown, f"{dialect.name} has no {unknown}"
        drain(adapter(dialect.name).validate_python({**body, "stream": True}))


def check_event(dialect: Dialect, event: JsonObject) -> None:
    """Raise for an event that the provider's package would not take for one of its stream."""
    shape: Any = RawMessageStreamEvent if dialect is MESSAGES else ResponseStreamEvent
    TypeAdapter(shape).validate_python(event)


def all_fields(shape: Any) -> set[str]:
    return {*shape.__required_keys__, *shape.__optional_keys__}


def drain(value: object) -> None:
    """Read what pydantic checks only when it is read."""
    if isinstance(value, dict):
        for item in value.values():
            drain(item)
    elif not isinstance(value, (str, bytes)) and hasattr(value, "__iter__"):
        for item in value:
            drain(item)
