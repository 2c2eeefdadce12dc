"""The task of the tiny model: two numbers to add with a tool, in two turns. Needs no torch.

The user says `17+25`, the model calls `add(a=17, b=25)`, reads `42` and says `42`."""

import json
import random

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Message

TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def problem(draw: random.Random) -> tuple[int, int]:
    return draw.randint(10, 49), draw.randint(10, 49)


def conversation(a: int, b: int, draw: random.Random, skill: float) -> list[Message]:
    """Write a conversation to learn from: right with probability `skill`, else it gives up before or after the tool
    call."""
    question: Message = {"role": "user", "content": f"{a}+{b}"}
    gives_up: Message = {"role": "assistant", "content": "?"}
    luck = draw.random()
    if luck > skill + (1 - skill) / 2:
        return [question, gives_up]
    call = {"type": "function", "function": {"name": "add", "arguments": json.dumps({"a": a, "b": b})}}
    called: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer: Message = {"role": "assistant", "content": str(a + b)}
    return [question, called, {"role": "tool", "content": str(a + b)}, answer if luck <= skill else gives_up]


def run_tool(arguments: str) -> str:
    try:
        numbers = json.loads(arguments)
        return str(int(numbers["a"]) + int(numbers["b"]))
    except (ValueError, TypeError, KeyError):
        return "error"


def grade(messages: list[Message], a: int, b: int) -> float:
    called = any(message.get("tool_calls") for message in messages)
    return float(called and str(messages[-1].get("content")).strip() == str(a + b))
