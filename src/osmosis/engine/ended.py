"""From how an attempt ended to its `Rollout`: the same for agent loops and workflows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic import ValidationError as PydanticError

from osmosis.records.rollout import Category, Failure, Message, ModelCall, Phase, Rollout, RolloutStatus, Score

from .rollout_model import sum_usage
from .score_result import as_number
from .task import Task

REWARD = "reward"


@dataclass(slots=True)
class Ended:
    """How an attempt ended, before it is a record."""

    messages: list[Message]
    failure: Failure | None
    calls: list[ModelCall]
    started_at: datetime
    started: float
    """On the monotonic clock."""
    waited_ms: float
    """Time that was not the attempt's: queues and rate limits."""
    finish_reason: str | None
    num_tool_calls: int


class Sample(Protocol):
    """What a workflow leaves, here or as it came over the wire."""

    metrics: dict[str, object]
    extra_fields: dict[str, object]
    remove_sample: bool

    @property
    def reward(self) -> float | None: ...


def rollout_of(task: Task, ended: Ended) -> Rollout:
    values: dict[str, object] = {
        "rollout_id": task.rollout_id,
        "row_index": task.row.index,
        "attempt": task.attempt,
        "status": RolloutStatus.FAILED if ended.failure else RolloutStatus.SUCCESS,
        "messages": ended.messages,
        "failure": ended.failure,
        "finish_reason": ended.finish_reason,
        "usage": sum_usage(ended.calls),
        "calls": ended.calls,
        "num_tool_calls": ended.num_tool_calls,
        "duration_ms": round(max(0.0, (time.monotonic() - ended.started) * 1000 - ended.waited_ms), 3),
        "started_at": ended.started_at,
        "model": next((call.model for call in reversed(ended.calls) if call.model), None),
    }
    try:
        return Rollout(**values)
    except PydanticError:
        # What an agent leaves may have keys that are not strings, and the like: stored as text.
        values["messages"] = [{str(key): value for key, value in m.items()} for m in ended.messages]
        values["finish_reason"] = None if ended.finish_reason is None else str(ended.finish_reason)
        return Rollout(**values)


def add_sample(rollout: Rollout, sample: Sample, *, graded: bool) -> None:
    """What a workflow left, into its rollout: its measurements and fields; when `graded`, its reward, or that it is to
    be left out."""
    rollout.metrics.update(numbers(sample.metrics))
    rollout.info.update(sample.extra_fields)
    if not graded:
        return
    if sample.remove_sample:
        rollout.status = RolloutStatus.SKIPPED
    elif sample.reward is not None:
        rollout.scores[REWARD] = Score(name=REWARD, value=sample.reward)


def numbers(measured: Mapping[str, object]) -> dict[str, float]:
    """The measurements that are numbers; true and false are 1 and 0."""
    return {name: float(value) for name, value in measured.items() if isinstance(value, (int, float))}


def tool_results(messages: list[Message]) -> int:
    """How many tools answered in this conversation."""
    return sum(1 for message in messages if message.get("role") == "tool")


def own_reward(value: object) -> Score:
    """The agent's own reward as a score; one that is not a finite number is a failure."""
    number, problem = as_number(value)
    if problem is None:
        return Score(name=REWARD, value=number)
    failure = Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message=f"the agent's reward is {problem}")
    return Score(name=REWARD, failure=failure)
