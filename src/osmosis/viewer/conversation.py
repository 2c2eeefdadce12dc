"""A conversation as turns that can be read: text, reasoning, tool calls with their arguments, tool results.

Takes whatever a rollout left behind; a message of an unknown shape is shown as JSON rather than dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from osmosis.records.message_parts import SHOWN_IMAGES, CitedSource, image_url, images_of, reasoning_of, sources_of
from osmosis.records.rollout import Message

from . import filters
from .markdown import indented, rendered

ONE_LINE = 90
"""Arguments of a tool up to this many characters stand on one line."""
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
    result: Turn | None = None
    """What the tool answered, where it did."""


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
    sources: list[CitedSource] = field(default_factory=list)
    """What the answer says it rests on (`annotations`)."""

    attached: bool = False
    """Shown with the call that it answers."""

    @property
    def html(self) -> Markup | None:
        """The text as HTML, when it is Markdown."""
        return None if self.role in ("tool", "function", "system") else rendered(self.text)

    @property
    def json(self) -> str | None:
        """The text indented, when it is JSON."""
        return indented(self.text)

    @property
    def long(self) -> bool:
        return len(self.text) > LONG

    @property
    def size(self) -> str:
        return f"{len(self.text):,} characters"


def turns(messages: list[Message]) -> list[Turn]:
    """The messages in order, each at its place; a tool result is named after the call it answers and stands in it."""
    names: dict[str, str] = {}
    shown = []
    for message in messages:
        turn = _turn(message, names)
        for call in turn.calls:
            names[call.id] = call.name
        shown.append(turn)
    return _with_results(shown)


def _with_results(shown: list[Turn]) -> list[Turn]:
    """Each result beside its call: the next one behind the call that carries its id."""
    open_calls: dict[str, tuple[int, int]] = {}
    for place, turn in enumerate(shown):
        for number, call in enumerate(turn.calls):
            if call.id:
                open_calls[call.id] = (place, number)
        if turn.answers and (found := open_calls.pop(turn.answers, None)) is not None:
            shown[place] = replace(turn, attached=True)
            asking = shown[found[0]]
            calls = [replace(one, result=turn) if i == found[1] else one for i, one in enumerate(asking.calls)]
            shown[found[0]] = replace(asking, calls=calls)
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
            arguments = _arguments(json.loads(arguments)) if arguments.strip() else "{}"
        except ValueError:
            valid = False
    else:
        arguments = _arguments(arguments if arguments is not None else {})
    return Call(str(function.get("name") or "unnamed"), str(arguments), str(call.get("id") or ""), valid)


def _arguments(value: object) -> str:
    """On one line when they are short."""
    short = json.dumps(value, ensure_ascii=False, default=str)
    return short if len(short) <= ONE_LINE else filters.pretty(value)


def _readable(text: str) -> str:
    """A tool's JSON answer, indented; anything else as it is."""
    if text[:1] in "{[" and len(text) < 100_000:
        try:
            return filters.pretty(json.loads(text))
        except ValueError:
            return text
    return text
