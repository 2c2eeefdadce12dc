"""From how an attempt ended to its `Rollout`: the same for agent loops and workflows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from operator import methodcaller
from typing import Protocol

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.base.plain_json import whole_text
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Category, Failure, Message, ModelCall, Phase, Rollout, RolloutStatus, Score
from osmosis.sdk.classify import overrun

from .clock import Deadline
from .rollout_model import sum_usage
from .score_result import as_number
from .task import Task
from .writable import not_json, own_json

REWARD = "reward"
_PLAIN = {dict}
_role = methodcaller("get", "role")


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
    tools: list[JsonObject] | None = None
    """As the model was offered them."""
    limit: str | None = None
    """The finish reason, when a limit of the rollout ended it: that is no failure."""


class Sample(Protocol):
    """What a workflow leaves, here or as it came over the wire."""

    metrics: dict[str, object]
    extra_fields: dict[str, object]
    remove_sample: bool

    @property
    def reward(self) -> float | None: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def parts(self) -> dict[str, float] | None: ...


def rollout_of(task: Task, ended: Ended) -> Rollout:
    """The rollout of what an attempt left: its own copy, in whole text and plain values. What cannot be made so is the
    failure of this rollout, with its place."""
    refused: list[str] = []
    messages = own_json(ended.messages, "messages", refused)
    tools = ended.tools and own_json(ended.tools, "tools", refused)
    failure = ended.failure if ended.limit is None else None
    failure = failure or (not_json(refused) if refused else None)
    reason = ended.limit or ended.finish_reason
    row = task.row
    fields: dict[str, object] = {
        "rollout_id": task.rollout_id,
        "row_index": row.index,
        "attempt": task.attempt,
        "step": task.step,
        "row_key": row.key,
        "status": RolloutStatus.FAILED if failure else RolloutStatus.SUCCESS,
        "messages": messages,
        "tools": tools,
        "scores": {},
        "failure": failure,
        "finish_reason": None if reason is None else whole_text(str(reason)),
        "answer_issue": None,
        "groups": {},
        "usage": sum_usage(ended.calls),
        "calls": ended.calls,
        "num_tool_calls": ended.num_tool_calls,
        "duration_ms": round(max(0.0, (time.monotonic() - ended.started) * 1000 - ended.waited_ms), 3),
        "started_at": ended.started_at,
        "model": _model_of(ended.calls),
        "metrics": {},
        "info": {},
        "hashes": {},
    }
    if type(messages) is list and set(map(type, messages)) <= _PLAIN:
        return Rollout.whole(fields)
    return Rollout.model_validate(fields)


def _model_of(calls: list[ModelCall]) -> str | None:
    """The last that is known to have answered."""
    for call in reversed(calls):
        if call.model:
            return call.model
    return None


def add_sample(rollout: Rollout, sample: Sample, *, graded: bool) -> None:
    """What a workflow left, into its rollout: its measurements and fields; when `graded`, its reward, or that it is to
    be left out."""
    rollout.metrics.update(numbers(sample.metrics))
    add_info(rollout, sample.extra_fields)
    if not graded:
        return
    if sample.remove_sample:
        rollout.status = RolloutStatus.SKIPPED
    elif sample.reward is not None:
        score = own_reward(sample.reward)
        if score.failure is None:
            score.reason = None if sample.reason is None else whole_text(sample.reason)
            score.parts = {whole_text(name): part for name, part in (sample.parts or {}).items()} or None
        rollout.scores[REWARD] = score


def add_info(rollout: Rollout, info: Mapping[str, object]) -> None:
    """What user code wants to keep beside the conversation: a copy, in plain values."""
    if not info:
        return
    refused: list[str] = []
    kept = own_json(info, "info", refused)
    assert isinstance(kept, dict)
    rollout.info.update(kept)
    if refused and rollout.failure is None:
        rollout.status, rollout.failure = RolloutStatus.FAILED, not_json(refused)


def numbers(measured: Mapping[str, object]) -> dict[str, float]:
    """The measurements that are finite numbers; true and false are 1 and 0."""
    found = {whole_text(str(name)): as_number(value) for name, value in measured.items()}
    return {name: number for name, (number, _) in found.items() if number is not None}


def agent_deadline(plan: EvalPlan) -> Deadline:
    """The time that an agent has: until it fails, or until it is scored as far as it came, whichever is sooner."""
    agent_s, most_s = plan.timeouts.agent_s, plan.limits.max_time_s
    if agent_s is None or most_s is None:
        return Deadline(agent_s if most_s is None else most_s)
    return Deadline(min(agent_s, most_s))


def time_limit(plan: EvalPlan, deadline: Deadline, task: Task) -> str | None:
    """`max_time` of a rollout that this limit ended, and not the agent's time limit."""
    if not deadline.fired or deadline.seconds is None or deadline.seconds != plan.limits.max_time_s:
        return None
    return None if task.left_behind or deadline.seconds == plan.timeouts.agent_s else "max_time"


def overran(deadline: Deadline, task: Task, who: str) -> Failure:
    """The failure of an agent that was stopped at its time limit, and what else is known of why."""
    failure = overrun(deadline.seconds or 0.0)
    if deadline.given_up and not task.left_behind:
        task.left_behind.append(who)
    if task.left_behind:
        failure.message += ", ignored its cancellation, and was left behind"
        failure.fix = "let asyncio.CancelledError pass: catch Exception, not BaseException, around what is awaited"
    elif task.held_s:
        failure.message += f", and blocked the event loop for {task.held_s:.1f} s"
        failure.fix = "await what takes long, or hand it to asyncio.to_thread"
    return failure


def tool_results(messages: list[Message]) -> int:
    """How many tools answered in this conversation."""
    return list(map(_role, messages)).count("tool")


def own_reward(value: object) -> Score:
    """The agent's own reward as a score; one that is not a finite number is a failure."""
    number, problem = as_number(value)
    if problem is None:
        return Score(name=REWARD, value=number)
    failure = Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message=f"the agent's reward is {problem}")
    return Score(name=REWARD, failure=failure)
