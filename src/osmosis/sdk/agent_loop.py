"""The agent of generation 0.2: subclass `RolloutAgentLoop`, offer tools, drive the conversation, return a result.

The context counts calls and writes the trace; it never decides when a loop is over.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from osmosis.base.json_types import JsonObject
from osmosis.base.plain_json import whole_text
from osmosis.base.redact import Redactor
from osmosis.llm.model import Completion
from osmosis.records.base import utc_now
from osmosis.records.loop_request import LoopStatus, RolloutMetrics, RolloutRequest
from osmosis.records.rollout import Message
from osmosis.records.tool_schema import OpenAIFunctionToolSchema

from .rollout_sandbox import Sandbox, get_sandbox

logger = logging.getLogger(__name__)

trace_folder: ContextVar[Path | None] = ContextVar("osmosis_trace_folder", default=None)
"""Where contexts without a folder of their own write their traces; None keeps them silent."""

_COMPLETED = LoopStatus.COMPLETED.value
_UNSAFE = re.compile(r"[^A-Za-z0-9._@+=-]")


@dataclass(frozen=True)
class CompletionsResult:
    """One answer of the policy."""

    message: Message
    token_ids: list[int]
    """Empty when the policy does not tell."""
    logprobs: list[float]
    usage: dict[str, int]
    """`prompt_tokens`, `completion_tokens`, `total_tokens`."""
    finish_reason: str
    choices: list[JsonObject] = field(default_factory=list)
    """Every answer in the wire form, where more than one was asked for (`n`); `message` is the first."""

    @classmethod
    def of(cls, done: Completion) -> CompletionsResult:
        """A model's answer in the words of generation 0.2."""
        usage = done.usage
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        result = object.__new__(cls)
        vars(result).update(  # at once: a frozen class sets its fields one by one, at several times the cost
            message=done.message,
            token_ids=done.token_ids or [],
            logprobs=done.logprobs or [],
            usage={"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
            finish_reason=done.finish_reason or "stop",
            choices=done.choices,
        )
        return result

    @property
    def tool_calls(self) -> list[JsonObject]:
        """The tool calls asked for; `[]` when there are none."""
        return self.message.get("tool_calls") or []

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    @property
    def content(self) -> str | None:
        """The text of the answer, as the message has it."""
        return self.message.get("content")


@runtime_checkable
class LLMClientProtocol(Protocol):
    """Whatever answers `ctx.chat`: the trainer's client, a provider's, a stand-in."""

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult: ...

    def get_metrics(self) -> RolloutMetrics: ...


class _WhenAsked:
    """The metrics of a result: what makes them is kept until somebody asks, which an evaluation never does."""

    def __get__(self, result: RolloutResult | None, owner: type[RolloutResult]) -> RolloutMetrics | None:
        if result is None:
            return None  # the default of the field
        found = vars(result)["metrics"]
        if isinstance(found, partial):
            found = vars(result)["metrics"] = found()
        return found  # type: ignore[no-any-return]  # partial or metrics

    def __set__(self, result: RolloutResult, value: object) -> None:
        vars(result)["metrics"] = value


@dataclass
class RolloutResult:
    """How a loop ended."""

    status: str
    """`COMPLETED` or `ERROR`."""
    final_messages: list[Message]
    finish_reason: str
    error_message: str | None = None
    metrics: RolloutMetrics | None = _WhenAsked()  # type: ignore[assignment]  # it gives and takes the metrics
    reward: float | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "metrics": self.metrics}


@dataclass
class RolloutContext:
    """What `RolloutAgentLoop.run` receives: the request, the tools that were offered, the model."""

    request: RolloutRequest
    tools: list[OpenAIFunctionToolSchema]
    llm: LLMClientProtocol
    _start_time: float = 0.0
    _tool_latency_ms: float = 0.0
    _num_tool_calls: int = 0
    _debug_dir: str | os.PathLike[str] | None = None
    _trace: _Trace | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self._debug_dir is None:
            self._debug_dir = trace_folder.get()

    async def chat(self, messages: list[Message], **kwargs: object) -> CompletionsResult:
        """One model call; `kwargs` are sampling parameters, and `on_piece` hears the answer while it is written."""
        return await self.llm.chat_completions(messages, **kwargs)

    @property
    def sandbox(self) -> Sandbox:
        """Where code that a model wrote runs: `await ctx.sandbox.run(["python", "main.py"], files={...})`."""
        return get_sandbox()

    def complete(
        self, final_messages: list[Message], finish_reason: str = "stop", reward: float | None = None
    ) -> RolloutResult:
        """The result of a loop that ended as it should."""
        result = RolloutResult(_COMPLETED, final_messages, finish_reason, None, None, reward)
        vars(result)["metrics"] = partial(self._metrics, self._elapsed_ms())
        return result

    def error(self, error_message: str, final_messages: list[Message] | None = None) -> RolloutResult:
        """The result of a loop that gives up."""
        return RolloutResult(
            status=LoopStatus.ERROR.value,
            final_messages=final_messages if final_messages is not None else [],
            finish_reason="error",
            error_message=error_message,
            metrics=self._metrics(),
        )

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """Counts one tool call in the metrics."""
        self._num_tool_calls += 1
        self._tool_latency_ms += latency_ms

    @property
    def debug_enabled(self) -> bool:
        """Whether `log_event` writes anywhere."""
        return bool(self._debug_dir)

    def log_event(self, event_type: str, **data: object) -> None:
        """Adds one line to this rollout's trace; nothing when traces are off. The request's key is blanked out."""
        if not self._debug_dir:
            return
        if self._trace is None:
            secrets = (self.request.api_key,) if self.request.api_key else ()
            self._trace = _Trace(trace_path(self._debug_dir, self.request.rollout_id), secrets)
        line = {
            "event": event_type,
            "rollout_id": self.request.rollout_id,
            "timestamp": utc_now().isoformat(),
            **data,
        }
        self._trace.write(line)

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self._start_time) * 1000 if self._start_time > 0 else 0.0

    def _metrics(self, elapsed_ms: float | None = None) -> RolloutMetrics:
        known = self.llm.get_metrics()
        told = {
            **known.__dict__,
            "total_latency_ms": self._elapsed_ms() if elapsed_ms is None else elapsed_ms,
            "tool_latency_ms": self._tool_latency_ms,
            "num_tool_calls": self._num_tool_calls,
        }
        return RolloutMetrics.made(**told)


def trace_path(folder: str | os.PathLike[str], rollout_id: str) -> Path:
    """`<folder>/<rollout_id>.jsonl`; an id that is not a plain file name is made safe and gets its hash."""
    safe = _UNSAFE.sub("_", rollout_id)
    if safe != rollout_id or safe.startswith(".") or len(safe) > 200:
        mark = hashlib.sha256(rollout_id.encode()).hexdigest()[:12]
        safe = f"{safe.lstrip('.')[:180]}-{mark}"
    return Path(folder) / f"{safe}.jsonl"


def trace_line(line: Mapping[str, object]) -> str:
    """One line of a trace, whatever an agent logs: a trace must never be what a rollout fails at."""
    try:
        text = json.dumps(line, default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, cycles, an object whose str() fails
        text = json.dumps({str(key): repr(value) for key, value in line.items()}, ensure_ascii=False)
    return whole_text(text)


class _Trace:
    """Appends JSON lines; a full disk is a warning, not a failed rollout."""

    def __init__(self, path: Path, secrets: tuple[str, ...]) -> None:
        self._path = path
        self._redactor = Redactor(secrets)

    def write(self, line: Mapping[str, object]) -> None:
        text = self._redactor.text(trace_line(line))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Opened per line: thousands of rollouts in flight would otherwise hold thousands of descriptors.
            with self._path.open("a", encoding="utf-8") as handle:
                handle.write(text + "\n")
        except OSError as exc:
            logger.warning("cannot write the trace %s: %s", self._path, exc)


class RolloutAgentLoop(ABC):
    """Base class of an agent loop. One instance serves all rollouts, so keep nothing of a rollout on `self`.

    Set `name` on every subclass that can be used; a subclass that is still abstract needs none.
    """

    name: str

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if _still_abstract(cls):
            return
        name = getattr(cls, "name", None)
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"{cls.__name__} must define a 'name' class attribute: a non-empty string, got {name!r}")

    @abstractmethod
    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        """The tools this rollout may use; `[]` for none. Called once per rollout, before `run`."""

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Drives the conversation; returns `ctx.complete(...)` or `ctx.error(...)`."""


def _still_abstract(cls: type) -> bool:
    # ABC fills __abstractmethods__ only after __init_subclass__ has run.
    if ABC in cls.__bases__:
        return True
    names = {name for base in cls.__mro__ for name in vars(base)}
    return any(getattr(inspect.getattr_static(cls, name, None), "__isabstractmethod__", False) for name in names)
