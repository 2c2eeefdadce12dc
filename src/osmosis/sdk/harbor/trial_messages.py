"""The conversation in an agent's own ATIF trajectory, as chat messages: what a native agent's sample consists of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Message

ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def read_messages(path: Path) -> list[Message]:
    """The messages of the document; none when there is no document or it is none (a link is none)."""
    if path.is_symlink():
        return []
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        steps = document["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    messages: list[Message] = []
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and not step.get("is_copied_context"):
            messages.extend(_of_step(step))
    return messages


def _of_step(step: JsonObject) -> list[Message]:
    message: Message = {"role": ROLES.get(str(step.get("source")), "user"), "content": _text(step.get("message"))}
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    calls = [call for call in step.get("tool_calls") or () if isinstance(call, dict)]
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    found = [message]
    known = {call["id"] for call in message.get("tool_calls", ())}
    for result in (step.get("observation") or {}).get("results") or ():
        source = result.get("source_call_id")
        content = _text(result.get("content"))
        if source in known:
            found.append({"role": "tool", "tool_call_id": source, "content": content})
        elif len(known) == 1:
            found.append({"role": "tool", "tool_call_id": next(iter(known)), "content": content})
        elif content:
            # What the environment says without having been called is said by nobody but the user.
            found.append({"role": "user", "content": content})
    return found


def _call(call: Mapping[str, object]) -> JsonObject:
    arguments = call.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    function = {"name": str(call.get("function_name") or ""), "arguments": written}
    return {"id": str(call.get("tool_call_id") or ""), "type": "function", "function": function}


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text")) for part in content if isinstance(part, dict) and part.get("text"))
    return "" if content is None else str(content)
