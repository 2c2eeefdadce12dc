"""A conversation as turns to read; a message of an unknown shape is shown as JSON, never dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound

from osmosis.records.run import rollout
from osmosis.records.run.rollout import Message
from osmosis.viewer.page import MAX_ONE_LINE, pretty

if TYPE_CHECKING:
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict

MAX_UNFOLDED, MAX_UNFOLDED_RESULT = 3000, 1500
MAX_LINES, MAX_RESULT_LINES = 60, 16
MAX_OPEN_TURNS = 16  # A longer conversation starts folded, but for its beginning, its end and what failed
OPEN_AT_START, OPEN_AT_END = 3, 5
PREVIEW_LENGTH = 110
CODE_ARGUMENTS = {
    "sql": "sql", "query": "sql", "statement": "sql", "code": "python", "python": "python", "source": "python",
    "script": "bash", "command": "bash", "cmd": "bash", "bash": "bash", "patch": "diff", "diff": "diff",
}  # fmt: skip
"""Arguments of tools that are shown as code, with the language; any text of several lines is, too."""
_FENCE = re.compile(r"```\w*")
_ERROR = re.compile(r"\s*(\w*error|\w*exception|traceback)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    name: str
    html: Markup


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    id: str
    valid: bool
    result: Turn | None = None
    code: Sequence[CodeBlock] = ()

    @property
    def short(self) -> bool:
        return len(self.arguments) <= MAX_ONE_LINE and "\n" not in self.arguments

    @property
    def html(self) -> Markup:
        return highlight_code(self.arguments, "json" if self.valid else "text")

    @property
    def preview(self) -> str:
        content = self.code[0].html.striptags() if self.code else self.arguments
        return f"{self.name} {content[:PREVIEW_LENGTH]}"


@dataclass(frozen=True, slots=True)
class Turn:
    role: str
    text: str
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tool: str = ""
    answers: str = ""
    note: str = ""
    images: list[str] = field(default_factory=list)
    sources: list[rollout.CitedSource] = field(default_factory=list)
    attached: bool = False
    open: bool = True
    same: bool = False  # True where another conversation beside this one has the same turn

    @property
    def error(self) -> bool:
        if self.role in ("tool", "function"):
            return is_error(self.text)
        return any(call.result is not None and call.result.error for call in self.calls)

    @property
    def preview(self) -> str:
        text = _FENCE.sub(" ", (self.text or self.note)[: 4 * PREVIEW_LENGTH])
        text = " → ".join([text, *(call.preview for call in self.calls)])
        text = " ".join(text.split())
        return text if len(text) <= PREVIEW_LENGTH else text[: PREVIEW_LENGTH - 1] + "…"

    @property
    def html(self) -> Markup | None:
        return None if self.role in ("tool", "function", "system") else render_markdown(self.text)

    @property
    def json(self) -> Markup | None:
        text = parse_json_text(self.text)
        return None if text is None else highlight_code(text, "json")

    @property
    def long(self) -> bool:
        result = self.role in ("tool", "function")
        characters, lines = (MAX_UNFOLDED_RESULT, MAX_RESULT_LINES) if result else (MAX_UNFOLDED, MAX_LINES)
        return len(self.text) > characters or self.text.count("\n") >= lines

    @property
    def size(self) -> str:
        lines = self.text.count("\n") + 1
        return f"{len(self.text):,} characters" if lines == 1 else f"{lines:,} lines"

    @property
    def content(self) -> tuple[object, ...]:
        results = [(call.name, call.arguments, *call.code, call.result and call.result.text) for call in self.calls]
        return self.role, self.text, self.reasoning, *results


def build_turns(messages: list[Message]) -> list[Turn]:
    """Return a turn for each message; a tool result is attached to the call that it answers."""
    names: dict[str, str] = {}
    turns: list[Turn] = []
    for message in messages:
        turn = _turn(message, names)
        for call in turn.calls:
            names[call.id] = call.name
        turns.append(turn)
    _attach_results(turns)
    visible = [index for index, turn in enumerate(turns) if not turn.attached]
    if len(visible) <= MAX_OPEN_TURNS:
        return turns
    folded = {index for index in visible[OPEN_AT_START:-OPEN_AT_END] if not turns[index].error}
    return [replace(turn, open=index not in folded) for index, turn in enumerate(turns)]


def fold_same(left: list[Turn], right: list[Turn]) -> None:
    """Fold the turns that both conversations have, in place, and unfold the others."""
    matcher = SequenceMatcher(None, [turn.content for turn in left], [turn.content for turn in right], autojunk=False)
    for kind, *ends in matcher.get_opcodes():
        for turns, first, last in ((left, ends[0], ends[1]), (right, ends[2], ends[3])):
            same = kind == "equal"
            turns[first:last] = [replace(turn, same=same, open=not same) for turn in turns[first:last]]


def _attach_results(turns: list[Turn]) -> None:
    open_calls: dict[str, tuple[int, int]] = {}
    for index, turn in enumerate(turns):
        for number, call in enumerate(turn.calls):
            if call.id:
                open_calls[call.id] = (index, number)
        if turn.answers and (position := open_calls.pop(turn.answers, None)) is not None:
            turns[index] = replace(turn, attached=True)
            asking, number = turns[position[0]], position[1]
            calls = [replace(call, result=turn) if i == number else call for i, call in enumerate(asking.calls)]
            turns[position[0]] = replace(asking, calls=calls)


def _turn(message: Message, names: dict[str, str]) -> Turn:
    role = str(message.get("role") or "unknown")
    answers = str(message.get("tool_call_id") or "")
    refusal = message.get("refusal")
    calls = message.get("tool_calls") or []
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        calls = [*calls, {"id": "", "function": legacy}]
    return Turn(
        role=role,
        text=_text(message),
        reasoning=rollout.get_reasoning(message),
        calls=[_call(call) for call in calls if isinstance(call, dict)],
        tool=str(message.get("name") or names.get(answers, "")) if role in ("tool", "function") else "",
        answers=answers,
        note=f"refused: {refusal}" if refusal else "",
        images=[url for url in rollout.list_images(message) if url.startswith(rollout.SHOWN_IMAGES)],
        sources=rollout.list_sources(message),
    )


def _text(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return (parse_json_text(content) or content) if message.get("role") in ("tool", "function") else content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_part, content)))
    return pretty(content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        kind = str(part.get("type") or "")
        if url := rollout.image_url(part):
            return "" if url.startswith(rollout.SHOWN_IMAGES) else f"[image: {url[:200]}]"
        if kind.startswith(("image", "input_image", "audio", "input_audio", "file")):
            return f"[{kind}: not shown]"
    return pretty(part)


def _call(call: dict[str, Any]) -> Call:
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    name, id_ = str(function.get("name") or "unnamed"), str(call.get("id") or "")
    arguments = function.get("arguments")
    try:
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
    except ValueError:
        return Call(name, str(arguments), id_, valid=False)
    code = _code_blocks(value) if isinstance(value, dict) else []
    rest = {key: item for key, item in value.items() if key not in {block.name for block in code}} if code else value
    return Call(name, pretty(rest) if rest or not code else "", id_, valid=True, code=code)


def _code_blocks(arguments: dict[str, Any]) -> list[CodeBlock]:
    blocks = []
    for name, value in arguments.items():
        language = CODE_ARGUMENTS.get(name.lower())
        if isinstance(value, str) and value.strip() and (language or "\n" in value):
            blocks.append(CodeBlock(name, highlight_code(value, language or "text")))
    return blocks


def is_error(text: str) -> bool:
    if _ERROR.match(text):
        return True
    try:
        value = json.loads(text) if text[:1] == "{" else None
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and any(bool(value.get(key)) for key in ("error", "is_error", "isError"))


MAX_HIGHLIGHTED = 20_000
_FORMATTER = HtmlFormatter(nowrap=True, classprefix="t-")


def highlight_code(text: str, language: str) -> Markup:
    try:
        lexer = get_lexer_by_name(language) if len(text) <= MAX_HIGHLIGHTED else TextLexer()
    except ClassNotFound:
        lexer = TextLexer()
    return Markup(highlight(text, lexer, _FORMATTER).rstrip("\n"))


MAX_RENDERED = 60_000
_MARKDOWN_SIGNS = re.compile(r"^(#{1,6} |[-*+] |\d+[.)] |> |```|~~~|\|.*\|)|\*\*\S|__\S|`[^`\n]+`|\]\(", re.MULTILINE)


def _heading(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    # A message's heading is no heading of the page; its signs stay, because `#### 42` is an answer to many graders.
    return f'<p class="said-heading">{tokens[at].markup} ' if tokens[at].nesting == 1 else "</p>\n"


def _link(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    tokens[at].attrSet("rel", "noreferrer noopener nofollow")
    return self.renderToken(tokens, at, options, env)


_PARSER = MarkdownIt("commonmark", {"html": False, "breaks": True})
_PARSER.options["highlight"] = lambda code, language, _: f"{highlight_code(code, language)}\n" if language else ""
_PARSER.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
for _rule, _render in (("heading_open", _heading), ("heading_close", _heading), ("link_open", _link)):
    _PARSER.add_render_rule(_rule, _render)


def render_markdown(text: str) -> Markup | None:
    if len(text) > MAX_RENDERED or not _MARKDOWN_SIGNS.search(text):
        return None
    return Markup(_PARSER.render(text).replace("<pre>", '<pre tabindex="0">'))


def parse_json_text(text: str) -> str | None:
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MAX_RENDERED:
        return None
    try:
        return pretty(json.loads(text))
    except (ValueError, RecursionError):
        return None
