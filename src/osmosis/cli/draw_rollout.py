"""How one rollout looks in a terminal: the conversation message by message, what was expected, scores, and what failed.

Text of users and models is plain text here, never markup, and cannot steer the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from osmosis.records.message_parts import images_of, reasoning_of, sources_of
from osmosis.records.rollout import Message, ModelCall, Rollout, Score
from osmosis.sdk.chat import text_of

from .drawing import Canvas
from .results import clean

_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
_LONG = 4000
"""Characters of one message that are shown; the rest is counted."""


def draw_message(console: Canvas, message: Message, title: str | None = None, *, whole: bool = True) -> None:
    """One message in a box, with reasoning, tool calls, images and sources."""
    role = str(message.get("role", "unknown"))
    name = f"{role} {message['tool_call_id']}" if message.get("tool_call_id") else role
    parts = list(_parts(message, whole=whole))
    console.print(
        Panel(Group(*parts), title=Text(title or name), title_align="left", border_style=_STYLES.get(role, ""))
    )


def _parts(message: Message, *, whole: bool) -> Iterator[Text]:
    reasoning = reasoning_of(message)
    if reasoning:
        yield Text(_cut(reasoning, whole=whole), style="dim italic")
    said = text_of(message)
    calls = message.get("tool_calls") or []
    if said or not (calls or reasoning):
        yield Text(_cut(said or "(no text)", whole=whole))
    for image in images_of(message):
        yield Text(f"[image] {clean(image[:100])}", style="dim")
    for call in calls:
        function = call.get("function") or {}
        yield Text(clean(f"-> {function.get('name')}({function.get('arguments')})"), style="bold")
    for source in sources_of(message):
        yield Text(f"[source] {clean(source.title)} {clean(source.url)}", style="dim")


def _cut(text: str, *, whole: bool) -> str:
    if whole or len(text) <= _LONG:
        return clean(text)
    return f"{clean(text[:_LONG])}\n... {len(text) - _LONG:,} more characters: --whole"


def draw_rollout(console: Canvas, rollout: Rollout, *, expected: str | None = None, whole: bool = False) -> None:
    """The conversation, then what came of it."""
    calls = iter(rollout.calls)
    for message in rollout.messages:
        call = next(calls, None) if message.get("role") == "assistant" else None
        draw_message(console, message, _call_title(call) if call else None, whole=whole)
    if expected is not None:
        console.print(Text("expected  ", style="bold") + Text(clean(expected)))
    for name, score in rollout.scores.items():
        for line in _score_lines(name, score):
            console.print(line)
    for key, value in (("metrics", rollout.metrics), ("info", rollout.info)):
        if value:
            console.print(Text(f"{key}  {clean(json.dumps(value, ensure_ascii=False))}", style="dim"))
    draw_failure(console, rollout)
    console.print(Text(" · ".join(facts(rollout)), style="dim"))


def _call_title(call: ModelCall) -> str:
    parts = ["assistant", f"{call.duration_ms / 1000:.1f} s", f"{call.usage.completion_tokens} tokens"]
    parts += [call.finish_reason] if call.finish_reason else []
    parts += [f"{call.retries} retries"] if call.retries else []
    return ", ".join(parts)


def _score_lines(name: str, score: Score) -> Iterator[Text]:
    if score.failure is not None:
        yield Text(f"{clean(name)}  failed: {clean(score.failure.message)}", style="red")
        if score.failure.traceback:
            yield Text(clean(score.failure.traceback), style="dim")
        return
    value = "none" if score.value is None else f"{score.value:g}"
    yield Text(f"{clean(name)}  ", style="bold") + Text(value)
    for part, number in (score.parts or {}).items():
        yield Text(f"  {clean(part)}  {number:g}")
    if score.reason:
        yield Text("  " + clean(score.reason).replace("\n", "\n  "), style="dim")


def draw_failure(console: Canvas, rollout: Rollout) -> None:
    """Why there is no result, with the last frames and what to do."""
    failure = rollout.failure
    if failure is None:
        return
    where = f"failed in {failure.phase.value}: {failure.category.value}"
    console.print(Text(clean(f"{where}: {failure.message}"), style="red"))
    if failure.traceback:
        console.print(Text(clean(failure.traceback), style="dim"))
    if failure.fix:
        console.print(Text(clean(f"fix: {failure.fix}"), style="yellow"))


def facts(rollout: Rollout) -> Sequence[str]:
    """What one line says of a rollout: how it ended, turns, tokens, money, time."""
    usage = rollout.usage
    found = [
        rollout.status.value,
        *([rollout.finish_reason] if rollout.finish_reason else []),
        *([rollout.answer_issue] if rollout.answer_issue else []),
        _count(len(rollout.calls), "model call"),
        _count(rollout.num_tool_calls, "tool call"),
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens",
        *([f"${usage.cost_usd:.4f}"] if usage.cost_usd else []),
        f"{rollout.duration_ms / 1000:.1f} s",
    ]
    return [clean(one) for one in found]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
