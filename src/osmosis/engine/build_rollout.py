import time
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ValidationError

from osmosis.base.jsonable import as_float, copy_as_json, to_valid_text
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.records.protocol.messages import WireSample
from osmosis.records.run.rollout import LARGEST_SCORE, Category, Failure, Message, Phase, Rollout, RolloutStatus, Score
from osmosis.sdk.classify import agent_error, true_cause
from osmosis.sdk.types import RolloutSample

REWARD = "reward"


def build_rollout(
    task: Task,
    model: RolloutModel,
    messages: list[Message] | None = None,
    *,
    failure: Failure | None = None,
    finish_reason: str | None = None,
    num_tool_calls: int = 0,
) -> Rollout:
    refused: list[str] = []
    own_messages = own_json(list(messages or model.messages or task.row.messages()), "messages", refused)
    tools = model.offered and own_json(model.offered, "tools", refused)
    limit = model.limit_reached
    if limit is not None:
        failure = None
    elif failure is not None and not model.deadline.fired:
        failure = true_cause(failure, model.error)
    failure = failure or (not_json(refused) if refused else None)
    reason = limit or finish_reason or model.finish_reason
    row = task.row
    rollout = Rollout(
        rollout_id=task.rollout_id,
        row_index=row.index,
        attempt=task.attempt,
        step=task.step,
        row_key=row.key,
        status=RolloutStatus.FAILED if failure else RolloutStatus.SUCCESS,
        messages=own_messages,
        tools=tools,
        failure=failure,
        finish_reason=None if reason is None else to_valid_text(str(reason)),
        usage=model.usage,
        calls=model.calls,
        duration_ms=round(max(0.0, (time.monotonic() - model.started) * 1000 - model.waited_ms), 3),
        started_at=model.started_at,
        model=next((call.model for call in reversed(model.calls) if call.model), None),
    )
    rollout.num_tool_calls = num_tool_calls or sum(message.get("role") == "tool" for message in rollout.messages)
    return rollout


def add_sample(rollout: Rollout, sample: RolloutSample | WireSample, *, graded: bool) -> None:
    rollout.metrics.update(numbers(sample.metrics))
    add_info(rollout, sample.extra_fields)
    if not graded:
        return
    if sample.remove_sample:
        rollout.status = RolloutStatus.SKIPPED
    elif sample.reward is not None:
        score = read_reward(sample.reward)
        if score.failure is None:
            score.reason = None if sample.reason is None else to_valid_text(sample.reason)
            score.parts = {to_valid_text(name): part for name, part in (sample.parts or {}).items()} or None
        rollout.scores[REWARD] = score


def add_info(rollout: Rollout, info: Mapping[str, object]) -> None:
    if not info:
        return
    refused: list[str] = []
    plain = own_json(info, "info", refused)
    assert isinstance(plain, dict)
    rollout.info.update(plain)
    if refused and rollout.failure is None:
        rollout.status, rollout.failure = RolloutStatus.FAILED, not_json(refused)


def numbers(measured: Mapping[str, object]) -> dict[str, float]:
    readings = {to_valid_text(str(name)): as_number(value) for name, value in measured.items()}
    return {name: number for name, (number, _) in readings.items() if number is not None}


def read_reward(value: object) -> Score:
    number, problem = as_number(value)
    if problem is None:
        return Score(name=REWARD, value=number)
    failure = Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message=f"the agent's reward is {problem}")
    return Score(name=REWARD, failure=failure)


_IDENTITY = ("rollout_id", "row_index", "attempt", "step", "row_key", "status", "failure", "started_at", "hashes")


def writable(rollout: Rollout) -> tuple[bytes, Rollout]:
    """Return the journal line of this rollout, and the rollout as that line has it."""
    try:
        return rollout.to_line(), rollout
    except Exception:  # noqa: BLE001 - user code left something: it costs its own rollout, never the journal
        refused: list[str] = []
        values = copy_as_json(rollout, "", refused)
        assert isinstance(values, dict)
        try:
            stored = Rollout(**{key: value for key, value in values.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            refused.append(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
            stored = Rollout(**{key: values[key] for key in _IDENTITY if values[key] is not None})
        if refused:
            stored.status, stored.scores = RolloutStatus.FAILED, {}
            stored.failure = stored.failure or not_json(refused)
        return stored.to_line(), stored


def own_json(value: object, path: str, refused: list[str]) -> Any:
    """Return a copy of `value` through JSON; replace values without a JSON form and add their paths to `refused`."""
    try:
        return orjson.loads(orjson.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return copy_as_json(value, path, refused)


def not_json(refused: list[str]) -> Failure:
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    problem = f"what the agent left cannot be stored as JSON: {refused[0]}{more}"
    return agent_error(problem, "keep only text, numbers, lists and dicts in messages and info")


def as_number(result: object) -> tuple[float | None, str | None]:
    try:
        value = as_float(result)
    except ValueError as error:
        return None, str(error)
    if abs(value) > LARGEST_SCORE:
        return None, f"{value:g}, which is beyond {LARGEST_SCORE:g}: means and deviations of it cannot be computed"
    return value, None
