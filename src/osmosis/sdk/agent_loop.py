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
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from osmosis.base.jsonable import JsonObject, to_valid_text
from osmosis.base.redact import Redactor
from osmosis.llm.model import Completion
from osmosis.records.base import utc_now
from osmosis.records.protocol.v02 import LoopStatus, OpenAIFunctionToolSchema, RolloutMetrics, RolloutRequest
from osmosis.records.run.rollout import Message
from osmosis.sdk.messages import Prompts
from osmosis.sdk.sandbox import Sandbox, get_sandbox

logger = logging.getLogger(__name__)

trace_folder: ContextVar[Path | None] = ContextVar("osmosis_trace_folder", default=None)

_UNSAFE = re.compile(r"[^A-Za-z0-9._@+=-]")


@dataclass(frozen=True)
class CompletionsResult:
    message: Message
    token_ids: list[int]  # Empty when the server sends none
    logprobs: list[float]
    usage: dict[str, int]  # `prompt_tokens`, `completion_tokens`, `total_tokens`
    finish_reason: str
    choices: list[JsonObject] = field(default_factory=list)

    @classmethod
    def of(cls, done: Completion) -> "CompletionsResult":
        prompt, completion = done.usage.prompt_tokens, done.usage.completion_tokens
        return cls(
            message=done.message,
            token_ids=done.token_ids or [],
            logprobs=done.logprobs or [],
            usage={"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
            finish_reason=done.finish_reason or "stop",
            choices=done.choices,
        )

    @property
    def tool_calls(self) -> list[JsonObject]:
        return self.message.get("tool_calls") or []

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    @property
    def content(self) -> str | None:
        return self.message.get("content")


@runtime_checkable
class LLMClientProtocol(Protocol):
    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult: ...

    def get_metrics(self) -> RolloutMetrics: ...


@dataclass
class RolloutResult:
    status: str
    """`COMPLETED` or `ERROR`."""
    final_messages: list[Message]
    finish_reason: str
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    reward: float | None = None


@dataclass
class RolloutContext:
    request: RolloutRequest
    tools: list[OpenAIFunctionToolSchema]
    llm: LLMClientProtocol
    _start_time: float = 0.0
    _tool_latency_ms: float = 0.0
    _num_tool_calls: int = 0
    _debug_dir: str | os.PathLike[str] | None = None
    prompts: Mapping[str, str] = field(default_factory=Prompts)
    """The texts of `prompts/NAME.md` beside the agent loop, by name."""
    _trace: "_Trace | None" = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self._debug_dir is None:
            self._debug_dir = trace_folder.get()

    async def chat(self, messages: list[Message], **kwargs: object) -> CompletionsResult:
        """Call the model once; `kwargs` are sampling parameters, `on_piece` is called with each piece of the answer."""
        return await self.llm.chat_completions(messages, **kwargs)

    @property
    def sandbox(self) -> Sandbox:
        """Return a sandbox for the model's code: `await ctx.sandbox.run(["python", "main.py"], files={...})`."""
        return get_sandbox()

    def complete(
        self, final_messages: list[Message], finish_reason: str = "stop", reward: float | None = None
    ) -> RolloutResult:
        return RolloutResult(
            status=LoopStatus.COMPLETED.value,
            final_messages=final_messages,
            finish_reason=finish_reason,
            metrics=self._metrics(),
            reward=reward,
        )

    def error(self, error_message: str, final_messages: list[Message] | None = None) -> RolloutResult:
        return RolloutResult(
            status=LoopStatus.ERROR.value,
            final_messages=final_messages if final_messages is not None else [],
            finish_reason="error",
            error_message=error_message,
            metrics=self._metrics(),
        )

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        self._num_tool_calls += 1
        self._tool_latency_ms += latency_ms

    @property
    def debug_enabled(self) -> bool:
        return bool(self._debug_dir)

    def log_event(self, event_type: str, **data: object) -> None:
        """Add one line to this rollout's trace, if there is one. The request's key is blanked out."""
        if not self._debug_dir:
            return
        if self._trace is None:
            secrets = (self.request.api_key,) if self.request.api_key else ()
            self._trace = _Trace(trace_path(self._debug_dir, self.request.rollout_id), secrets)
        line = {"event": event_type, "rollout_id": self.request.rollout_id, "timestamp": utc_now().isoformat(), **data}
        self._trace.write(line)

    def _metrics(self) -> RolloutMetrics:
        elapsed_s = time.monotonic() - self._start_time if self._start_time > 0 else 0.0
        measured = {
            "total_latency_ms": elapsed_s * 1000,
            "tool_latency_ms": self._tool_latency_ms,
            "num_tool_calls": self._num_tool_calls,
        }
        return self.llm.get_metrics().model_copy(update=measured)


def trace_path(folder: str | os.PathLike[str], rollout_id: str) -> Path:
    """Return `<folder>/<rollout_id>.jsonl`; an id that is not a plain file name is made safe and gets its hash."""
    safe = _UNSAFE.sub("_", rollout_id)
    if safe != rollout_id or safe.startswith(".") or len(safe) > 200:
        mark = hashlib.sha256(rollout_id.encode()).hexdigest()[:12]
        safe = f"{safe.lstrip('.')[:180]}-{mark}"
    return Path(folder) / f"{safe}.jsonl"


def trace_line(line: Mapping[str, object]) -> str:
    try:
        text = json.dumps(line, default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, cycles, an object whose str() fails
        text = json.dumps({str(key): repr(value) for key, value in line.items()}, ensure_ascii=False)
    return to_valid_text(text)


class _Trace:
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

    Set `name` on every subclass that can be used; an abstract subclass needs none."""

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
        """Return the tools this rollout may use; `[]` for none. Called once per rollout, before `run`."""

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Drive the conversation; return `ctx.complete(...)` or `ctx.error(...)`."""


def _still_abstract(cls: type) -> bool:
    # ABC fills __abstractmethods__ only after __init_subclass__ has run.
    if ABC in cls.__bases__:
        return True
    names = {name for base in cls.__mro__ for name in vars(base)}
    return any(getattr(inspect.getattr_static(cls, name, None), "__isabstractmethod__", False) for name in names)
