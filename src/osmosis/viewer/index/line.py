"""What of a stored rollout goes into the index: its figures, its first question and last answer, every word that was
said. Reads the JSON as it was stored; a shape that it does not know costs the words, never the rollout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.records.message_parts import reasoning_of
from osmosis.records.rollout import RolloutStatus

SHOWN = 400
"""Characters of a prompt or answer that a table keeps."""
_ONE_BY_ONE = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
"""Scripts without spaces between words: each character counts as one."""
Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class IndexLine:
    """One rollout as the index keeps it."""

    step: int
    row_index: int
    attempt: int
    outcome: int
    """The place in `query.OUTCOMES`."""
    figures: tuple[Value, ...]
    """Reward, tokens, cost, duration, turns, tool calls, start in seconds."""
    category: str | None
    model: str | None
    place: int
    texts: tuple[Value, ...]
    scores: list[tuple[str, float | None]]
    tools: set[str]
    words: str


def read_line(raw: bytes | str, place: int, threshold: float) -> IndexLine | None:
    """Of a rollout as it was stored; None when it is not one."""
    try:
        found = orjson.loads(raw)
        return _line(found, place, threshold)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _line(found: JsonObject, place: int, threshold: float) -> IndexLine:
    messages = [one for one in found.get("messages") or () if isinstance(one, dict)]
    scores = found.get("scores") or {}
    values = [(name, one.get("value")) for name, one in scores.items()]
    success = found["status"] == RolloutStatus.SUCCESS.value
    reward = values[0][1] if values and success else None
    failure = (
        found.get("failure") or next((one["failure"] for one in scores.values() if one.get("failure")), None) or {}
    )
    usage = found.get("usage") or {}
    tools = set(_tool_names(messages))
    answer = next((text for one in reversed(messages) if one.get("role") == "assistant" and (text := said(one))), "")
    figures: tuple[Value, ...] = (
        reward,
        usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0),
        usage.get("cost_usd"),
        found.get("duration_ms", 0.0),
        sum(one.get("role") == "assistant" for one in messages),
        found.get("num_tool_calls", 0),
        _seconds(found.get("started_at")),
    )
    texts = (
        next((said(one) for one in messages if one.get("role") == "user"), "")[:SHOWN],
        answer[-SHOWN:],
        str(failure.get("message") or "")[:SHOWN],
        found.get("finish_reason"),
        found.get("answer_issue"),
        (found.get("hashes") or {}).get("row"),
        found.get("row_key"),
        _extra(found, scores),
    )
    words = "\n".join(_words(messages, failure, scores))
    return IndexLine(
        step=found.get("step", 0),
        row_index=found["row_index"],
        attempt=found["attempt"],
        outcome=outcome_number(found["status"], reward, threshold),
        figures=figures,
        category=failure.get("category"),
        model=found.get("model"),
        place=place,
        texts=texts,
        scores=values,
        tools=tools,
        words=spaced(words),
    )


def _seconds(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def outcome_number(status: str, reward: float | None, threshold: float) -> int:
    """The place in `query.OUTCOMES`: without a score a rollout has failed, unless it was skipped."""
    if status == RolloutStatus.SKIPPED.value:
        return 3
    if reward is None:
        return 2
    return 0 if reward >= threshold else 1


def said(message: JsonObject) -> str:
    """The text of a message, without its reasoning and tool calls."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (
            part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, (str, dict))
        )
        return "\n".join(text for text in texts if isinstance(text, str))
    return "" if content is None else str(content)


def _calls(messages: list[JsonObject]) -> Iterator[JsonObject]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield function


def _tool_names(messages: list[JsonObject]) -> Iterator[str]:
    return (str(call["name"]) for call in _calls(messages) if call.get("name"))


def _words(messages: list[JsonObject], failure: JsonObject, scores: JsonObject) -> Iterator[str]:
    for message in messages:
        yield said(message)
        yield reasoning_of(message)
    for call in _calls(messages):
        yield f"{call.get('name')} {call.get('arguments')}"
    yield f"{failure.get('category') or ''} {failure.get('message') or ''}"
    for score in scores.values():
        yield str(score.get("reason") or "")


def _extra(found: JsonObject, scores: JsonObject) -> str | None:
    """Numbers of the agent's own and what scores keep beside them, for columns that somebody chooses."""
    metadata = {name: one["metadata"] for name, one in scores.items() if one.get("metadata")}
    parts = {name: one["parts"] for name, one in scores.items() if one.get("parts")}
    reasons = {name: one["reason"][:SHOWN] for name, one in scores.items() if one.get("reason")}
    kept = {"metric": found.get("metrics"), "meta": metadata, "part": parts, "reason": reasons}
    kept = {name: one for name, one in kept.items() if one}
    return orjson.dumps(kept).decode() if kept else None


def spaced(text: str) -> str:
    """With a space on both sides of each character that is a word by itself."""
    return text if text.isascii() else _ONE_BY_ONE.sub(r" \1 ", text)
