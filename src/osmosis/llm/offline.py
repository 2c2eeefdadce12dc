"""Stand-ins for a model: deterministic, without network, account or key. They say so wherever they are shown.

`offline/calculator` does arithmetic the way an agent would: it calls an offered tool, then answers
`#### <number>`, and is wrong in about one rollout of four, by seed. `offline/echo` repeats the prompt.
`offline/judge` answers a rubric with JSON. None of them is a language model, and none pretends to be one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.errors import ModelError
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Category, Message, Usage

from .model import ChatRequest, Completion

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_INFIX = re.compile(rf"(?<![\d.])({_NUMBER})\s*([+\-*/x×÷])\s*({_NUMBER})")
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("multiply", re.compile(r"multipl|times|product", re.I)),
    ("divide", re.compile(r"divid|quotient", re.I)),
    ("subtract", re.compile(r"subtract|minus|difference|less than", re.I)),
    ("add", re.compile(r"\badd|sum|plus|total", re.I)),
)
_SYMBOLS = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "x": "multiply",
    "×": "multiply",
    "/": "divide",
    "÷": "divide",
}
_APPLY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b if b else 0.0,
}
_WRONG_ONE_IN = 4


class OfflineModel:
    """The stand-in that `spec.name` names."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        policies = {"offline/calculator": calculate, "offline/echo": echo, "offline/judge": judge}
        policy = policies.get(spec.name)
        if policy is None:
            raise ModelError(
                f"there is no offline model {spec.name!r}",
                category=Category.MODEL_NOT_FOUND.value,
                hint=f"one of: {', '.join(policies)}",
            )
        self._policy = policy

    async def complete(self, request: ChatRequest) -> Completion:
        message = self._policy(request, self.spec.seed)
        return Completion(
            message=message,
            finish_reason="tool_calls" if message.get("tool_calls") else "stop",
            usage=Usage(
                prompt_tokens=sum(_tokens(m) for m in request.messages),
                completion_tokens=_tokens(message),
                cached_tokens=0,
                cost_usd=0.0,
            ),
            model=self.spec.name,
        )

    async def close(self) -> None:
        """Nothing to release."""


def calculate(request: ChatRequest, seed: int) -> Message:
    """A tool call while a fitting tool is offered and unanswered, then the number."""
    question = _last(request.messages, "user")
    task = parse_task(question)
    if task is None:
        return {"role": "assistant", "content": "I can only do arithmetic on two numbers.\n#### 0"}
    operation, a, b = task
    after = request.messages[_index_of_last(request.messages, "user") + 1 :]
    results = [m for m in after if m.get("role") == "tool"]
    tool = choose_tool(request.tools or [], operation)
    if tool is not None and not results:
        name, first, second = tool
        arguments = orjson.dumps({first: _plain(a), second: _plain(b)}).decode()
        call_id = "call_" + _digest(seed, question, request.rollout_id, len(request.messages))[:12]
        function = {"name": name, "arguments": arguments}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        }
    value = _APPLY[operation](a, b)
    if results:
        said = re.findall(_NUMBER, str(results[-1].get("content") or ""))
        value = float(said[-1].replace(",", "")) if said else value
    value = mistaken(value, request, seed)
    return {"role": "assistant", "content": f"The result is {format_number(value)}.\n#### {format_number(value)}"}


def echo(request: ChatRequest, seed: int) -> Message:
    """The last user message, unchanged."""
    return {"role": "assistant", "content": _last(request.messages, "user")}


def judge(request: ChatRequest, seed: int) -> Message:
    """How much of the reference's words the candidate contains, as a judge's JSON verdict between 0 and 1."""
    text = "\n".join(str(m.get("content") or "") for m in request.messages)
    candidate, truth = _block(text, "CANDIDATE_OUTPUT"), _block(text, "GROUND_TRUTH")
    wanted = set(re.findall(r"\w+", truth.lower()))
    said = set(re.findall(r"\w+", candidate.lower()))
    if wanted:
        score, why = len(wanted & said) / len(wanted), "share of the reference's words in the output"
    else:
        score, why = float(bool(said)), "no reference: 1 if there is any output"
    verdict = {"score": round(score, 4), "explanation": f"stand-in judge: {why}"}
    return {"role": "assistant", "content": orjson.dumps(verdict).decode()}


def parse_task(text: str) -> tuple[str, float, float] | None:
    """The operation and its two numbers, from `12 * 34` or from words; None when there is no such task."""
    infix = _INFIX.search(text)
    if infix:
        return _SYMBOLS[infix.group(2)], _number(infix.group(1)), _number(infix.group(3))
    numbers = [_number(n) for n in re.findall(_NUMBER, text)]
    if len(numbers) < 2:
        return None
    a, b = numbers[0], numbers[1]
    for operation, words in _WORDS:
        if words.search(text):
            backwards = operation == "subtract" and re.search(r"subtract\b.*\bfrom\b|less than", text, re.I)
            return (operation, b, a) if backwards else (operation, a, b)
    return None


def choose_tool(tools: list[JsonObject], operation: str) -> tuple[str, str, str] | None:
    """The tool named like the operation, else the only one, with its first two numeric parameters."""
    found = []
    for tool in tools:
        function = tool.get("function") or {}
        operands = _numeric_parameters(function.get("parameters") or {})
        if len(operands) >= 2:
            found.append((str(function.get("name")), operands[0], operands[1]))
    named = [tool for tool in found if operation in tool[0].lower()]
    if named:
        return named[0]
    known = [tool for tool in found if any(o in tool[0].lower() for o in _APPLY)]
    return found[0] if len(found) == 1 and not known else None


def _numeric_parameters(parameters: JsonObject) -> list[str]:
    """The required ones; all, where none is said to be required."""
    properties: JsonObject = parameters.get("properties") or {}
    numeric = [name for name, said in properties.items() if _takes_number(said or {})]
    return [name for name in numeric if name in (parameters.get("required") or numeric)]


def mistaken(value: float, request: ChatRequest, seed: int) -> float:
    """The value, or by seed a wrong one; without a rollout the messages decide, so that a question has one answer."""
    if request.rollout_id:
        key = _digest(seed, request.row_index, request.attempt)
    else:
        key = _digest(seed, _last(request.messages, "user"))
    draw = int(key[:8], 16)
    if draw % _WRONG_ONE_IN:
        return value
    return value + 1 + draw // _WRONG_ONE_IN % 9


def _takes_number(said: JsonObject) -> bool:
    """Whether a parameter may be a number, perhaps among other things."""
    kinds = said.get("type")
    either = [one for one in said.get("anyOf") or () if isinstance(one, dict)]
    named = kinds if isinstance(kinds, list) else [kinds]
    return not {"number", "integer"}.isdisjoint(named) or any(_takes_number(one) for one in either)


def format_number(value: float) -> str:
    """Without a decimal point when whole, else at most six decimals."""
    return str(int(value)) if float(value).is_integer() else f"{value:.6f}".rstrip("0").rstrip(".")


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _block(text: str, name: str) -> str:
    """A fenced text: between markers with the word that the judge's system message names, which no text contains."""
    said = re.search(r"Only a marker with (\[\w+\])", text)
    fence = re.escape(said.group(1)) if said else ""
    found = re.search(rf"{fence} ?<<<BEGIN_{name}>>>\n?(.*?)\n?<<<END_{name}>>> ?{fence}", text, re.S)
    return found.group(1) if found else ""


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _index_of_last(messages: list[Message], role: str) -> int:
    return max((i for i, m in enumerate(messages) if m.get("role") == role), default=-1)


def _last(messages: list[Message], role: str) -> str:
    index = _index_of_last(messages, role)
    return _text(messages[index]) if index >= 0 else ""


def _tokens(message: Message) -> int:
    """A rough count, four characters each: enough to add up, not a tokenizer."""
    calls = message.get("tool_calls")
    return 3 + (len(_text(message)) + (len(orjson.dumps(calls)) if calls else 0)) // 4


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
