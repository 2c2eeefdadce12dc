"""The task of the tiny model: two numbers to add with a tool, in two turns. Needs no torch.

The user says `17+25`, the model calls `add(a=17, b=25)`, reads `42` and says `42`.
"""

from __future__ import annotations

import json
import random

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Message

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
"""The tool that the model knows, as an agent passes it."""


def problem(draw: random.Random) -> tuple[int, int]:
    """Two numbers to add."""
    return draw.randint(10, 49), draw.randint(10, 49)


def conversation(a: int, b: int, draw: random.Random, skill: float) -> list[Message]:
    """One to learn from: right with this probability, else it gives up, before the tool call or after it."""
    asked: Message = {"role": "user", "content": f"{a}+{b}"}
    gives_up: Message = {"role": "assistant", "content": "?"}
    luck = draw.random()
    if luck > skill + (1 - skill) / 2:
        return [asked, gives_up]
    call = {"type": "function", "function": {"name": "add", "arguments": json.dumps({"a": a, "b": b})}}
    called: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer: Message = {"role": "assistant", "content": str(a + b)}
    return [asked, called, {"role": "tool", "content": str(a + b)}, answer if luck <= skill else gives_up]


def run_tool(arguments: str) -> str:
    """What the tool answers to arguments as a model writes them."""
    try:
        given = json.loads(arguments)
        return str(int(given["a"]) + int(given["b"]))
    except (ValueError, TypeError, KeyError):
        return "error"


def grade(messages: list[Message], a: int, b: int) -> float:
    """1.0 for the right sum after a call of the tool."""
    called = any(message.get("tool_calls") for message in messages)
    return float(called and str(messages[-1].get("content")).strip() == str(a + b))
