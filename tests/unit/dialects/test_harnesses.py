"""Recorded requests of agent programs (skeletons: long strings are hashed) are told apart, and continue each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from osmosis.dialects import GEMINI, MESSAGES, RESPONSES, Call, Dialect
from osmosis.dialects.call import (
    COMPACTION,
    PROBE,
    ROUTER,
    SUBAGENT,
    SUGGESTION,
    TITLE,
    find_purpose,
    normalize,
    read_system,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "harnesses"

PURPOSES = {
    "claude_agent_sdk": ["", ""],
    "claude_code": ["", ""],
    "claude_code_bare": ["", ""],
    "claude_code_subagents": ["", SUBAGENT, SUBAGENT, SUBAGENT, SUBAGENT, ""],
    "claude_code_thinking": ["", "", ""],
    "claude_code_title": [TITLE, "", ""],
}


def read_calls(name: str) -> list[tuple[Call, str]]:
    calls = []
    for line in (RECORDED / f"{name}.jsonl").read_bytes().splitlines():
        recorded = orjson.loads(line)
        call = MESSAGES.parse(recorded["body"])
        purpose = find_purpose(call, recorded["headers"], read_system(call.messages))
        normalize(call)
        calls.append((call, purpose))
    return calls


@pytest.mark.parametrize("name", PURPOSES)
def test_recorded_calls_are_told_apart(name: str) -> None:
    assert [purpose for _, purpose in read_calls(name)] == PURPOSES[name]


@pytest.mark.parametrize("name", PURPOSES)
def test_later_calls_begin_with_the_messages_of_earlier_ones(name: str) -> None:
    """Whatever moves from call to call (cache marks, billing lines, one block or several) is gone."""
    calls = [call for call, _ in read_calls(name)]
    continued = 0
    for index, call in enumerate(calls):
        for later in calls[index + 1 :]:
            continued += later.messages[: len(call.messages)] == call.messages
    assert continued == {"claude_code_subagents": 3, "claude_code_thinking": 3}.get(name, 1)
    assert not any("x-anthropic-billing-header" in str(call.messages) for call in calls)


CODEX_COMPACTS = {"x-codex-turn-metadata": '{"request_kind": "compaction"}'}
TOOL = {"type": "function", "name": "bash", "parameters": {"type": "object"}}
GEMINI_ROUTES: dict[str, Any] = {
    "contents": [{"role": "user", "parts": [{"text": "Which model?"}]}],
    "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("dialect", "body", "headers", "model", "purpose"),
    [
        (RESPONSES, {"input": "Summarize."}, CODEX_COMPACTS, "m", COMPACTION),
        (RESPONSES, {"input": "Please say 'hello, world'"}, {}, "m", PROBE),
        (RESPONSES, {"input": "Fix the bug", "instructions": "You are a coding agent."}, {}, "m", ""),
        (RESPONSES, {"input": "Fix it", "instructions": "You are a title generator."}, {}, "m", TITLE),
        (RESPONSES, {"input": "[SUGGESTION MODE: Suggest what follows]", "tools": [TOOL]}, {}, "m", SUGGESTION),
        (GEMINI, GEMINI_ROUTES, {"x-goog-api-key": "k"}, "gemini-2.5-flash-lite", ROUTER),
        (GEMINI, GEMINI_ROUTES, {"x-goog-api-key": "k"}, "gemini-2.5-pro", ""),
    ],
)
def test_marks_of_other_programs(
    dialect: Dialect, body: dict[str, Any], headers: dict[str, str], model: str, purpose: str
) -> None:
    call = dialect.parse(body)
    call.model = model
    assert find_purpose(call, headers, read_system(call.messages)) == purpose
