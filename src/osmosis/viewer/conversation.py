"""A conversation as turns that can be read: text, reasoning, tool calls with their arguments, tool results.

Takes whatever a rollout left behind; a message of an unknown shape is shown as JSON rather than dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from osmosis.records.message_parts import SHOWN_IMAGES, Source, image_url, images_of, reasoning_of, sources_of
from osmosis.records.rollout import Message

from . import filters

LONG = 3000
"""Texts above this many characters start folded."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model."""

    name: str
    arguments: str
    """Pretty JSON, or the raw text when it is not JSON."""
    id: str
    valid: bool
    """Whether the arguments are JSON."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message."""

    role: str
    text: str
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tool: str = ""
    """Of a tool result: the tool's name."""
    answers: str = ""
    """Of a tool result: the id of the call."""
    note: str = ""
    images: list[str] = field(default_factory=list)
    """Data addresses."""
    sources: list[Source] = field(default_factory=list)
    """What the answer says it rests on (`annotations`)."""

    @property
    def long(self) -> bool:
        return len(self.text) > LONG

    @property
    def size(self) -> str:
        return f"{len(self.text):,} characters"


def turns(messages: list[Message]) -> list[Turn]:
    """The messages in order; a tool result is named after the call it answers."""
    names: dict[str, str] = {}
    shown = []
    for message in messages:
        turn = _turn(message, names)
        for call in turn.calls:
            names[call.id] = call.name
        shown.append(turn)
    return shown


def _turn(message: Message, names: dict[str, str]) -> Turn:
    role = str(message.get("role") or "unknown")
    answers = str(message.get("tool_call_id") or "")
    refused = message.get("refusal")
    return Turn(
        role=role,
        text=_text(message),
        reasoning=reasoning_of(message),
        calls=_calls(message),
        tool=str(message.get("name") or names.get(answers, "")) if role in ("tool", "function") else "",
        answers=answers,
        note=f"refused: {refused}" if refused else "",
        images=[url for url in images_of(message) if url.startswith(SHOWN_IMAGES)],
        sources=sources_of(message),
    )


def _text(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return _readable(content) if message.get("role") in ("tool", "function") else content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return filters.pretty(content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        kind = str(part.get("type") or "")
        if url := image_url(part):
            return "[image]" if url.startswith(SHOWN_IMAGES) else f"[image: {url[:200]}]"
        if kind.startswith(("image", "input_image", "audio", "input_audio", "file")):
            return f"[{kind}: not shown]"
    return filters.pretty(part)


def _calls(message: Message) -> list[Call]:
    calls = message.get("tool_calls") or []
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        calls = [*calls, {"id": "", "function": legacy}]
    return [_call(call) for call in calls if isinstance(call, dict)]


def _call(call: dict[str, Any]) -> Call:
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    arguments, valid = function.get("arguments"), True
    if isinstance(arguments, str):
        try:
            arguments = filters.pretty(json.loads(arguments)) if arguments.strip() else "{}"
        except ValueError:
            valid = False
    else:
        arguments = filters.pretty(arguments if arguments is not None else {})
    return Call(str(function.get("name") or "unnamed"), str(arguments), str(call.get("id") or ""), valid)


def _readable(text: str) -> str:
    """A tool's JSON answer, indented; anything else as it is."""
    if text[:1] in "{[" and len(text) < 100_000:
        try:
            return filters.pretty(json.loads(text))
        except ValueError:
            return text
    return text
