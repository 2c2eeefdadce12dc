from collections import Counter
from collections.abc import Sequence

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Message


def parse_tool_calls(message: Message) -> list[JsonObject]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def normalize_stop(stop: object) -> list[str] | None:
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, list):
        return [str(sequence) for sequence in stop]
    return None


def get_message_content(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def get_message_role(message: Message) -> str:
    role = message.get("role")
    return role if isinstance(role, str) else "unknown"


def is_assistant_message(message: Message) -> bool:
    return get_message_role(message) == "assistant"


def is_tool_message(message: Message) -> bool:
    return get_message_role(message) == "tool"


def is_user_message(message: Message) -> bool:
    return get_message_role(message) == "user"


def count_messages_by_role(messages: list[Message]) -> dict[str, int]:
    return dict(Counter(get_message_role(message) for message in messages))


def solution_of(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message.get("role") == "assistant" and message.get("content") is not None:
            content = message["content"]
            if isinstance(content, list):
                return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
            return str(content)
    return ""
