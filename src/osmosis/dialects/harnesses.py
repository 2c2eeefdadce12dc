"""Marks of agent programs: what they send beside their own conversation, and what varies between their calls.
`find_purpose` tells calls that are not the agent's (titles, probes, summaries, sub-agents) by their marks; `normalize`
takes from a call what changes although the conversation does not, so that a later call continues an earlier one. The
marks were read from recorded requests of the versions that docs/agents.md lists."""

from collections.abc import Mapping

import orjson

from osmosis.dialects.call import Call, text_of
from osmosis.records.run.rollout import Message

AGENT = ""
SUBAGENT = "subagent"
COMPACTION = "compaction"
TITLE = "title"
ROUTER = "router"
PROBE = "probe"
SUGGESTION = "suggestion"
RETRY = "retry"
TRAINED = frozenset({AGENT, SUBAGENT, COMPACTION})
"""Calls in which the model did the agent's work."""

BILLING = "x-anthropic-billing-header:"
"""First line of a system block of Claude Code; it depends on version and first prompt."""
_TITLES = (
    "you are a title generator",
    "generate a concise, sentence-case",
    "generate a short title",
    "you name coding",
)
_SUGGESTION = "[suggestion mode:"
_SUMMARIES = ("your task is to create a detailed summary of the conversation", "context checkpoint compaction")
_PROBES = ("please say 'hello, world'", "quota", "test", "say ok.")


def find_purpose(call: Call, headers: Mapping[str, str], system_text: str) -> str:
    """Return what a call is for; `system_text` is the system prompt before `normalize`."""
    if headers.get("x-claude-code-agent-id") or "cc_is_subagent=true" in system_text[:300]:
        return SUBAGENT
    metadata = headers.get("x-codex-turn-metadata", "")
    if "compact" in metadata and _turn_kind(metadata) == COMPACTION:
        return COMPACTION
    last = text_of(call.messages[-1].get("content")).strip() if call.messages else ""
    if last[: len(_SUGGESTION)].lower() == _SUGGESTION:
        return SUGGESTION
    if call.tools:
        return AGENT
    last = last.lower()
    head = system_text[:2000].lower()
    if any(mark in last for mark in _SUMMARIES) or any(mark in head for mark in _SUMMARIES):
        return COMPACTION
    if any(mark in head or last.startswith(mark) for mark in _TITLES):
        return TITLE
    if len(call.messages) <= 2 and (last in _PROBES or call.params.get("max_tokens") == 1):
        return PROBE
    if "response_format" in call.params and headers.get("user-agent", "").startswith("claude-cli"):
        return TITLE
    if "response_format" in call.params and "flash-lite" in call.model and "x-goog-api-key" in headers:
        return ROUTER
    return AGENT


def _turn_kind(metadata: str) -> str:
    try:
        turn: object = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        return ""
    return str(turn.get("request_kind", "")) if isinstance(turn, dict) else ""


def read_system(messages: list[Message]) -> str:
    return text_of(messages[0].get("content")) if messages and messages[0].get("role") == "system" else ""


def normalize(call: Call) -> None:
    """Take the billing line out, and join texts in several parts: which part ends where says nothing to a model."""
    for message in call.messages:
        content = message.get("content")
        if not isinstance(content, list) or not all(part.get("type") == "text" for part in content):
            continue
        texts = [part["text"] for part in content if not part["text"].startswith(BILLING)]
        message["content"] = "\n\n".join(texts)
