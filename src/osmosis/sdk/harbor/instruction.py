"""From a row to what the agent is told: the messages of a workflow, the text of a native agent.

A template's `instruction.md` may name `prompt`, `system_prompt`, `messages` and `metadata`. The row's label is not
among them: what the agent reads never contains it, and a template that asks for it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from osmosis.records.rollout import Message


@dataclass(frozen=True, slots=True)
class Instruction:
    """What one rollout's agent is told, in both forms."""

    messages: list[Message]
    """For a workflow: the row's messages, the last of the user with the task's words."""
    text: str
    """For a native agent: everything in one text."""


def from_row(messages: list[Message], metadata: Mapping[str, object], template: str | None) -> Instruction:
    """The instruction of a row under a template's `instruction.md`; `ValueError` when it cannot be rendered.

    A template without placeholders is put before the prompt; an empty one, or none, leaves the prompt as it is.
    """
    prompt = _last_user(messages)
    words = template or ""
    if "{{" in words or "{%" in words:
        words = _render(words, messages, metadata).strip()
    elif words.strip():
        words = f"{words.strip()}\n\n{prompt}".strip()
    else:
        words = prompt
    if not words.strip():
        raise ValueError("the row has no prompt and the template's instruction.md adds none, so there is no task")
    return _told(messages, words, names_system=template is not None and "system_prompt" in template)


def _told(messages: list[Message], words: str, *, names_system: bool) -> Instruction:
    """The row's messages with `words` as what the user says last."""
    kept = [dict(message) for message in messages]
    if kept and kept[-1].get("role") == "user":
        kept.pop()
    told = [*kept, {"role": "user", "content": words}]
    lines = [
        text_of(m) if _is_system(m) else f"{m.get('role')}: {text_of(m)}"
        for m in kept
        if not (names_system and _is_system(m))
    ]
    return Instruction(told, "\n\n".join([*filter(None, lines), words]))


def under_task(messages: list[Message], words: str) -> list[Message]:
    """The messages of a task that has its own words: what the row's system says, then these."""
    return [*(dict(m) for m in messages if _is_system(m)), {"role": "user", "content": words}]


def text_of(message: Message) -> str:
    """A message's text; of content parts those that are text."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict) and "text" in part)
    return "" if content is None else str(content)


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def _last_user(messages: list[Message]) -> str:
    return next((text_of(m) for m in reversed(messages) if m.get("role") == "user"), "")


def _render(template: str, messages: list[Message], metadata: Mapping[str, object]) -> str:
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import SandboxedEnvironment

    known = {
        "prompt": _last_user(messages),
        "system_prompt": "\n\n".join(text_of(m) for m in messages if _is_system(m)),
        "messages": messages,
        "metadata": metadata,
    }
    try:
        return SandboxedEnvironment(undefined=StrictUndefined).from_string(template).render(known)
    except TemplateError as exc:
        raise ValueError(
            f"instruction.md cannot be rendered for this row: {exc}; available names: {', '.join(known)}"
        ) from exc
