import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.message_parts import get_reasoning
from osmosis.records.run.rollout import RolloutStatus

EXCERPT = 400
_UNSPACED_SCRIPTS = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
"""Scripts without spaces between words: each character counts as a word."""
Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class IndexedRollout:
    columns: dict[str, Value]
    scores: dict[str, float | None]
    tools: set[str]
    words: str


def index_rollout(raw: bytes | str, position: int, threshold: float) -> IndexedRollout | None:
    try:
        return _index(orjson.loads(raw), position, threshold)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _index(rollout: JsonObject, position: int, threshold: float) -> IndexedRollout:
    messages = [message for message in rollout.get("messages") or () if isinstance(message, dict)]
    scores = rollout.get("scores") or {}
    values = {name: score.get("value") for name, score in scores.items()}
    success = rollout["status"] == RolloutStatus.SUCCESS.value
    reward = next(iter(values.values()), None) if success else None
    failures = [rollout.get("failure"), *(score.get("failure") for score in scores.values())]
    failure: JsonObject = next((failure for failure in failures if failure), {})
    usage = rollout.get("usage") or {}
    calls = list(_tool_calls(messages))
    prompt = next((message_text(message) for message in messages if message.get("role") == "user"), "")
    columns: dict[str, Value] = {
        "step": rollout.get("step", 0),
        "row_index": rollout["row_index"],
        "attempt": rollout["attempt"],
        "place": position,
        "outcome": outcome(rollout["status"], reward, threshold),
        "reward": reward,
        "tokens": usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0),
        "cost": usage.get("cost_usd"),
        "duration": rollout.get("duration_ms", 0.0),
        "turns": sum(message.get("role") == "assistant" for message in messages),
        "tools": rollout.get("num_tool_calls", 0),
        "started": _timestamp(rollout.get("started_at")),
        "category": failure.get("category"),
        "model": rollout.get("model"),
        "prompt": prompt[:EXCERPT],
        "answer": last_answer(messages)[-EXCERPT:],
        "failure": str(failure.get("message") or "")[:EXCERPT],
        "finish": rollout.get("finish_reason"),
        "issue": rollout.get("answer_issue"),
        "row_hash": (rollout.get("hashes") or {}).get("row"),
        "row_key": rollout.get("row_key"),
        "extra": _extra(rollout, scores),
    }
    tools = {str(call["name"]) for call in calls if call.get("name")}
    words = "\n".join(
        [
            *(part for message in messages for part in (message_text(message), get_reasoning(message))),
            *(f"{call.get('name')} {call.get('arguments')}" for call in calls),
            f"{failure.get('category') or ''} {failure.get('message') or ''}",
            *(str(score.get("reason") or "") for score in scores.values()),
        ]
    )
    return IndexedRollout(columns, values, tools, separate_characters(words))


def _timestamp(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def outcome(status: str, reward: float | None, threshold: float) -> str:
    if status == RolloutStatus.SKIPPED.value:
        return "skipped"
    if reward is None:
        return "failed"
    return "passed" if reward >= threshold else "not-passed"


def message_text(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(part for part in parts if isinstance(part, str))
    return "" if content is None else str(content)


def last_answer(messages: list[JsonObject]) -> str:
    answers = (message_text(message) for message in reversed(messages) if message.get("role") == "assistant")
    return next((answer for answer in answers if answer), "")


def _tool_calls(messages: list[JsonObject]) -> Iterator[JsonObject]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield function


def _extra(rollout: JsonObject, scores: JsonObject) -> str | None:
    values = {
        "metric": rollout.get("metrics"),
        "meta": {name: score["metadata"] for name, score in scores.items() if score.get("metadata")},
        "part": {name: score["parts"] for name, score in scores.items() if score.get("parts")},
        "reason": {name: score["reason"][:EXCERPT] for name, score in scores.items() if score.get("reason")},
    }
    values = {kind: value for kind, value in values.items() if value}
    return orjson.dumps(values).decode() if values else None


def separate_characters(text: str) -> str:
    return text if text.isascii() else _UNSPACED_SCRIPTS.sub(r" \1 ", text)
