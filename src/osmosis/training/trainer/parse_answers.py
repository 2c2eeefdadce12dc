"""Tokens to content, reasoning and tool calls, by the tokenizer's response template, that of its family
(`response_templates.json`, from TRL 1.16, Apache-2.0), or `<tool_call>` blocks of JSON."""

import contextlib
import json
import re
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from osmosis.base.jsonable import JsonObject
from osmosis.training.protocol.messages import SampleDelta, SampledToolCall

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_THINK = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)
_TAIL = 256  # tokens of the prompt that may say how the answer begins (an opened `<think>`)
_REASONING = ("reasoning_content", "thinking", "reasoning")


FAMILIES = Path(__file__).with_name("response_templates.json")


def response_template(tokenizer: Any) -> JsonObject | None:
    """Return the tokenizer's own response template, else that of its family; None for an unknown one."""
    if own := getattr(tokenizer, "response_template", None):
        return dict(own)
    for family in json.loads(FAMILIES.read_text("utf-8")):
        if all(mark in str(tokenizer.chat_template) for mark in family["marks"]):
            return dict(family["template"])
    return None


@dataclass
class Answer:
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[SampledToolCall] = field(default_factory=list)
    parse: Literal["template", "json", "content"] = "content"
    malformed_calls: int = 0


class AnswerReader:
    def __init__(self, tokenizer: Any, template: JsonObject | None) -> None:
        self._tokenizer, self._template = tokenizer, template

    @property
    def reads_by(self) -> Literal["template", "json"]:
        return "template" if self._template else "json"

    def read(self, request_id: str, prompt_ids: list[int], text: str, tools: list[JsonObject] | None) -> Answer:
        """Parse the answer in `text`, with its special tokens. Never raise: what cannot be read is content."""
        prefix = self._tokenizer.decode(prompt_ids[-_TAIL:])
        if self._template is not None:
            answer = self._by_template(request_id, prefix, text, tools)
            if answer is not None:
                return answer
        text = text.removesuffix(self._tokenizer.eos_token)
        reasoning, rest = _split_reasoning(prefix, text)
        blocks = _CALL.findall(rest)
        if "<tool_call>" not in rest or not tools:
            return Answer(content=self._without_special(rest), reasoning=reasoning)
        calls = _checked(request_id, [_loaded(block) for block in blocks]) if blocks else None
        if calls is None:
            return Answer(content=self._without_special(rest), reasoning=reasoning, malformed_calls=max(1, len(blocks)))
        content = self._without_special(rest.partition("<tool_call>")[0]).strip()
        return Answer(content or None, reasoning, calls, "json")

    def text(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def deltas(self, prompt_ids: list[int], tools: list[JsonObject] | None) -> "DeltaReader":
        prefix = self._tokenizer.decode(prompt_ids[-_TAIL:])
        parser = None
        if self._template is not None:
            parser = self._tokenizer.get_response_parser(self._template, prefix=prefix, tools=tools)
        return DeltaReader(parser, self._tokenizer.eos_token)

    def _by_template(self, request_id: str, prefix: str, text: str, tools: list[JsonObject] | None) -> Answer | None:
        try:
            parsed = self._tokenizer.parse_response(text, schema=self._template, prefix=prefix, tools=tools)
        except Exception:  # noqa: BLE001 - the model may have written anything, and templates raise anything
            return None
        if not isinstance(parsed, dict):
            return None
        raw = parsed.get("tool_calls") or []
        calls = _checked(request_id, raw) if tools else None
        if raw and calls is None:
            return None
        content = parsed.get("content")
        reasoning = next((parsed[name] for name in _REASONING if isinstance(parsed.get(name), str)), None)
        return Answer(content if isinstance(content, str) else None, reasoning, calls or [], "template")

    def _without_special(self, text: str) -> str:
        for token in self._tokenizer.all_special_tokens:
            if token not in ("<tool_call>", "</tool_call>"):
                text = text.replace(token, "")
        return text


class DeltaReader:
    def __init__(self, parser: Any, end: str) -> None:
        self._parser, self._end = parser, end
        self._seen = self._told = 0
        self._content = ""

    def rest(self, content: str | None) -> SampleDelta | None:
        if not content or not content.startswith(self._content) or content == self._content:
            return None
        return SampleDelta(content=content[len(self._content) :])

    def feed(self, text: str) -> SampleDelta | None:
        """Return what is new in `text`, the answer so far."""
        if self._parser is None:
            if text.lstrip().startswith("<think>"):
                return None
            stop = len(text)
            for mark in ("<tool_call>", "<think>", self._end):
                at = text.find(mark)
                begins = (n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:]))
                stop = min(stop, at if at >= 0 else len(text) - next(begins, 0))
            new, self._told = text[self._told : stop], max(self._told, stop)
            self._content += new
            return SampleDelta(content=new) if new else None
        new, self._seen = text[self._seen :], len(text)
        delta = SampleDelta()
        try:
            events = self._parser.feed(new) or []
        except Exception:  # noqa: BLE001 - as in `read`; the whole answer follows
            return None
        for event in events:
            if event.get("type") != "region_chunk":
                continue
            if event.get("field") == "content":
                delta.content += event.get("text") or ""
            elif event.get("field") in _REASONING:
                delta.reasoning += event.get("text") or ""
        self._content += delta.content
        return delta if delta.content or delta.reasoning else None


def _split_reasoning(prefix: str, text: str) -> tuple[str | None, str]:
    if prefix.rstrip().endswith("<think>"):
        thought, closed, rest = text.partition("</think>")
        return (thought.strip(), rest.lstrip()) if closed else (text, "")
    match = _THINK.match(text)
    return (match[1].strip(), text[match.end() :]) if match else (None, text)


def read_arguments(arguments: object) -> object:
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            return json.loads(arguments)
    return arguments


def _loaded(block: str) -> object:
    try:
        return {"function": json.loads(block)}
    except ValueError:
        return None


def _checked(request_id: str, raw: list[object]) -> list[SampledToolCall] | None:
    calls = []
    for number, call in enumerate(raw):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = read_arguments(function.get("arguments", {})) if isinstance(function, dict) else None
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        key = blake2b(f"{request_id}/{number}".encode(), digest_size=9).hexdigest()
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append(SampledToolCall(id=f"call_{key}", function=function))
    return calls
