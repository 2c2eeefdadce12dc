"""What is wrong with an answer that nobody failed: filtered, refused, truncated or empty.

Such a rollout succeeded and has a score, usually 0, which says little about what the model can do. So they are counted
and shown beside the score. Of rollouts stored before this was looked at, the finish reason alone says it.
"""

from __future__ import annotations

from collections.abc import Sequence

from osmosis.records.rollout import AnswerIssue, Message

MEANING: dict[AnswerIssue, str] = {
    "filtered": "The provider's content filter cut or withheld the answer.",
    "refused": "The model refused to answer.",
    "truncated": "The answer ended at the limit of tokens.",
    "empty": "The last message has no text and calls no tool.",
}
_FINISH_REASONS: dict[str, AnswerIssue] = {
    "content_filter": "filtered",
    "safety": "filtered",
    "refusal": "refused",
    "length": "truncated",
    "max_tokens": "truncated",
}


def issue_of_reason(finish_reason: str | None) -> AnswerIssue | None:
    """What the reason alone says, in the words of any provider."""
    return _FINISH_REASONS.get(finish_reason.lower()) if finish_reason else None


def answer_issue(messages: Sequence[Message], finish_reason: str | None) -> AnswerIssue | None:
    """What is wrong with the last answer; None when nothing is, or when there is none at all."""
    found = issue_of_reason(finish_reason)
    if found is not None:
        return found
    for last in reversed(messages):
        if last.get("role") == "assistant":
            if last.get("refusal"):
                return "refused"
            return "empty" if _blank(last.get("content")) and not last.get("tool_calls") else None
    return None


def _blank(content: object) -> bool:
    if type(content) is str:
        return not content or content.isspace()
    if isinstance(content, list):
        return not any(isinstance(part, dict) and (part.get("type") != "text" or _text(part)) for part in content)
    return content is None or (isinstance(content, str) and not content.strip())


def _text(part: dict[str, object]) -> bool:
    text = part.get("text")
    return isinstance(text, str) and bool(text.strip())
