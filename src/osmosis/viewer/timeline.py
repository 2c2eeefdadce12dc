"""What a rollout did when: its model calls, and the time between them, in which tools ran or it waited.

A stored rollout says when each model call began and how long it took; the time behind a call that asked for tools is
the tools', any other is the agent's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from osmosis.records.rollout import Message, ModelCall, Rollout

NARROWEST = 0.3
"""Percent of the width that the shortest span has, so that it can be seen."""
GAP_MS = 1.0
"""Shorter times between two calls are not shown."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of time, placed on a line of 100 units."""

    kind: Literal["model", "tools", "agent"]
    label: str
    started_ms: float
    duration_ms: float
    left: float
    width: float
    call: ModelCall | None = None
    message: int | None = None
    """The place of the message that came of it, where that can be told."""
    failed: bool = False


def timeline(rollout: Rollout) -> Sequence[Span]:
    """In order of time; empty when no call was recorded."""
    calls = sorted(rollout.calls, key=lambda call: call.started_ms)
    if not calls:
        return ()
    answers = answered_by(rollout.messages, calls)
    end = max(rollout.duration_ms, *(call.started_ms + call.duration_ms for call in calls)) or 1.0
    found: list[Span] = []
    at, tools = 0.0, ""
    for number, call in enumerate(calls):
        if call.started_ms - at > GAP_MS:
            found.append(_span(tools, at, call.started_ms - at, end))
        message = answers.get(number)
        label = f"model call {number + 1}" + (", failed" if call.error else "")
        left, width = _place(call.started_ms, call.duration_ms, end)
        found.append(
            Span("model", label, call.started_ms, call.duration_ms, left, width, call, message, call.error is not None)
        )
        at = max(at, call.started_ms + call.duration_ms)
        tools = ", ".join(_tools(rollout.messages[message])) if message is not None else ""
    if end - at > GAP_MS:
        found.append(_span(tools, at, end - at, end))
    return found


def answered_by(messages: Sequence[Message], calls: Sequence[ModelCall]) -> dict[int, int]:
    """The message that each call gave, by their places; empty where the two cannot be matched."""
    said = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    good = [i for i, call in enumerate(calls) if call.error is None]
    return dict(zip(good, said, strict=True)) if len(said) == len(good) else {}


def _tools(message: Message) -> list[str]:
    calls = message.get("tool_calls")
    found = (call.get("function") for call in calls if isinstance(call, dict)) if isinstance(calls, list) else ()
    return [str(function.get("name")) for function in found if isinstance(function, dict)]


def _span(tools: str, started: float, took: float, end: float) -> Span:
    left, width = _place(started, took, end)
    return Span("tools" if tools else "agent", tools or "agent", started, took, left, width)


def _place(started: float, took: float, end: float) -> tuple[float, float]:
    width = max(NARROWEST, 100 * took / end)
    return round(min(100 * started / end, 100 - width), 2), round(width, 2)
