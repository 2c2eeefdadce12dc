"""Trajectories in the Agent Trajectory Interchange Format (ATIF) v1.7, made from chat messages."""

import json
import math
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record, Strict
from osmosis.records.run.rollout import Message, ModelCall, Rollout, image_url

SCHEMA_VERSION: Literal["ATIF-v1.7"] = "ATIF-v1.7"

Source = Literal["system", "user", "agent"]

_COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
_SOURCES: dict[str, Source] = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _finite(part)
    return value


Free = Annotated[JsonObject, AfterValidator(_finite)]


class ImageSource(Strict):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    path: str


class ContentPart(Strict):
    type: Literal["text", "image"]
    text: str | None = None
    source: ImageSource | None = None


Content = str | list[ContentPart]


class ToolCall(Strict):
    tool_call_id: str
    function_name: str
    arguments: Free
    extra: Free | None = None
    """`arguments` as the model wrote them, when they are not a JSON object."""


class ObservationResult(Strict):
    source_call_id: str | None = None
    """The tool call of the same step that this answers; None when it is unknown."""
    content: Content | None = None
    extra: Free | None = None


class Observation(Strict):
    results: list[ObservationResult]


class _CallMetrics(Record):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    """US dollars; None: unknown price, not free."""
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: Free | None = None


class Metrics(_CallMetrics, Strict): ...


class Step(Strict):
    step_id: int = Field(ge=1)
    source: Source
    message: Content
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    llm_call_count: int | None = None
    is_copied_context: bool | None = None
    """An answer that was given to the rollout, not produced by it."""
    extra: Free | None = None


class FinalMetrics(Strict):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: Free | None = None


class TrajectoryAgent(Strict):
    name: str
    version: str
    model_name: str | None = None


class TrajectoryExtra(Strict):
    osmosis: Free


class Trajectory(Strict):
    schema_version: Literal["ATIF-v1.7"] = SCHEMA_VERSION
    """Clients of the remote-rollout protocol read 1.7; `to_export` says 1.8, of which this is a part."""
    session_id: str
    trajectory_id: str
    agent: TrajectoryAgent
    steps: list[Step] = Field(min_length=1)
    final_metrics: FinalMetrics
    extra: TrajectoryExtra

    def to_export(self) -> JsonObject:
        return {**self.to_dict(), "schema_version": "ATIF-v1.8"}


class CallUsage(_CallMetrics):
    model_name: str | None = None


class ModelUsage(Record):
    model_name: str | None = None
    llm_call_metrics: list[CallUsage] = Field(default_factory=list)
    final_metrics: FinalMetrics | None = None

    @field_validator("final_metrics", mode="before")
    @classmethod
    def _keep_known_fields(cls, value: object) -> object:
        # It comes from any trainer, and is refused for what it says wrongly, not for what it says in addition.
        if not isinstance(value, dict):
            return value
        return {key: sub for key, sub in value.items() if key in FinalMetrics.model_fields}


class AckTrajectory(Record):
    model_name: str | None = None
    samples: dict[str, ModelUsage] = Field(default_factory=dict)

    def usage(self, rollout_id: str) -> ModelUsage | None:
        usage = self.samples.get(rollout_id)
        if usage is None and len(self.samples) == 1:
            usage = next(iter(self.samples.values()))
        if usage is not None and usage.model_name is None:
            usage = usage.model_copy(update={"model_name": self.model_name})
        return usage


class CallbackAnswer(Record):
    trajectory: AckTrajectory | None = None


def build_trajectory(
    messages: Sequence[Message],
    rollout_id: str,
    *,
    version: str,
    usage: ModelUsage | None = None,
    opening: int = 0,
    osmosis: Mapping[str, object] | None = None,
) -> Trajectory:
    """Build the document of one conversation; raise ValueError when it is empty or refused. The first `opening`
    messages were given; calls are put on the steps when there are as many, else into `final_metrics.extra`."""
    usage = usage or ModelUsage()
    steps: list[Step] = []
    for index, message in enumerate(messages):
        if message.get("role") in ("tool", "function"):
            _observe(steps, message)
        else:
            steps.append(_step(len(steps) + 1, message, is_given=index < opening))
    calls = usage.llm_call_metrics
    trajectory = [step for step in steps if step.source == "agent" and not step.is_copied_context]
    for step, call in zip(trajectory, calls if len(calls) == len(trajectory) else (), strict=False):
        step.metrics = Metrics(**call.model_dump(exclude={"model_name"}))
        step.llm_call_count = 1
        step.model_name = call.model_name if call.model_name != usage.model_name else None
    return Trajectory(
        session_id=rollout_id,
        trajectory_id=rollout_id,
        agent=TrajectoryAgent(name="osmosis-rollout-sdk", version=version, model_name=usage.model_name),
        steps=steps,
        final_metrics=_totals(usage, len(steps), unplaced=len(calls) != len(trajectory)),
        extra=TrajectoryExtra(osmosis={"rollout_id": rollout_id, **(osmosis or {})}),
    )


def trajectory_from_rollout(rollout: Rollout, *, version: str) -> Trajectory:
    succeeded = (call for call in rollout.calls if call.error is None)
    calls = [CallUsage(**_usage(call), model_name=call.model, extra=_more(call)) for call in succeeded]
    final = FinalMetrics(**{f"total_{name}": getattr(rollout.usage, name) for name in _COUNTED})
    rest = rollout.to_dict()
    for key in ("messages", "usage", "model"):
        rest.pop(key, None)
    first = next(iter(rollout.scores.values()), None)
    return build_trajectory(
        # A rollout that failed before its first message still has scores, a failure and times to tell.
        rollout.messages or [{"role": "user", "content": ""}],
        rollout.rollout_id,
        version=version,
        usage=ModelUsage(model_name=rollout.model, llm_call_metrics=calls, final_metrics=final),
        osmosis={"reward": first.value if first else None, **rest},
    )


def messages_from_trajectory(document: Mapping[str, Any]) -> list[Message]:
    messages: list[Message] = []
    for step in document.get("steps") or ():
        source, content = step.get("source"), step.get("message")
        if source != "agent":
            messages.append({"role": str(source or "user"), "content": content})
            continue
        message: Message = {"role": "assistant", "content": content}
        if reasoning := step.get("reasoning_content"):
            message["reasoning_content"] = reasoning
        if calls := step.get("tool_calls"):
            message["tool_calls"] = [_chat_call(call) for call in calls]
        messages.append(message)
        for result in (step.get("observation") or {}).get("results") or ():
            call_id, content = result.get("source_call_id"), result.get("content")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return messages


def _chat_call(call: Mapping[str, Any]) -> JsonObject:
    arguments = call.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    function = {"name": call.get("function_name"), "arguments": text}
    return {"id": call.get("tool_call_id"), "type": "function", "function": function}


def _usage(call: ModelCall) -> JsonObject:
    lists = call.tokens.to_dict() if call.tokens else {}
    lists.pop("top_logprobs", None)
    return call.usage.model_dump(include=set(_COUNTED)) | lists


def _more(call: ModelCall) -> JsonObject | None:
    extra = {
        "reasoning_tokens": call.usage.reasoning_tokens,
        "cache_write_tokens": call.usage.cache_write_tokens,
        "system_fingerprint": call.fingerprint,
        "top_logprobs": call.tokens.top_logprobs if call.tokens else None,
    }
    return {key: value for key, value in extra.items() if value} or None


def _step(number: int, message: Message, *, is_given: bool) -> Step:
    role = str(message.get("role") or "user")
    source = _SOURCES.get(role, "user")
    agent = source == "agent"
    used = {"role", "content", *(("tool_calls", "reasoning_content") if agent else ())}
    extra = {str(key): value for key, value in message.items() if key not in used and value is not None}
    if role not in ("system", "user", "assistant"):
        extra["role"] = role
    calls = message.get("tool_calls") if agent else None
    return Step(
        step_id=number,
        source=source,
        message=_content(message.get("content")),
        reasoning_content=_text(message.get("reasoning_content")) if agent else None,
        tool_calls=[_tool_call(call, f"call_{number}_{i}") for i, call in enumerate(calls)] if calls else None,
        is_copied_context=True if agent and is_given else None,
        extra=extra or None,
    )


def _tool_call(call: object, stand_in: str) -> ToolCall:
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    raw = function.get("arguments")
    try:
        # NaN, Infinity and 1e999 are no JSON either.
        arguments = _finite(json.loads(raw)) if isinstance(raw, str) and raw.strip() else raw or {}
    except ValueError:
        arguments = None
    readable = isinstance(arguments, dict)
    return ToolCall(
        tool_call_id=str(call.get("id") or stand_in),
        function_name=str(function.get("name") or ""),
        arguments=arguments if readable else {},
        extra=None if readable else {"arguments": raw},
    )


def _observe(steps: list[Step], message: Message) -> None:
    """Put a tool's result on the step that requested it: the last one with that call id, as ids may repeat."""
    call_id = message.get("tool_call_id")
    step = next(
        (step for step in reversed(steps) if any(call.tool_call_id == call_id for call in step.tool_calls or ())), None
    )
    extra = {str(key): value for key, value in message.items() if key not in ("role", "content") and value is not None}
    if step is not None:
        extra.pop("tool_call_id")
    asking, content = None if step is None else str(call_id), _content(message.get("content"))
    result = ObservationResult(source_call_id=asking, content=content, extra=extra or None)
    step = step or next((step for step in reversed(steps) if step.source == "agent"), None)
    if step is None:
        step = Step(step_id=len(steps) + 1, source="system", message="")
        steps.append(step)
    step.observation = Observation(results=[*(step.observation.results if step.observation else ()), result])


def _content(value: object) -> Content:
    return [_part(part) for part in value] if isinstance(value, list) else _text(value) or ""


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def _part(part: object) -> ContentPart:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return ContentPart(type="text", text=part["text"])
    url = image_url(part)
    kind, _ = mimetypes.guess_type(url if url.startswith("data:") else urlsplit(url).path)
    if kind in ("image/jpeg", "image/png", "image/gif", "image/webp"):
        return ContentPart(type="image", source=ImageSource(media_type=kind, path=url))
    return ContentPart(type="text", text=_text(part) or "")


def _totals(usage: ModelUsage, steps: int, *, unplaced: bool) -> FinalMetrics:
    calls = usage.llm_call_metrics
    totals = usage.final_metrics.model_dump(exclude_none=True) if usage.final_metrics else {}
    summed: JsonObject = {f"total_{name}": _sum(getattr(call, name) for call in calls) for name in _COUNTED}
    extra = dict(totals.pop("extra", None) or {})
    if unplaced and calls:
        extra["llm_calls"] = [call.to_dict() for call in calls]
    return FinalMetrics(**{**summed, **totals, "total_steps": steps, "extra": extra or None})


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None
