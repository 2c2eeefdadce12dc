import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from pydantic import ValidationError

from osmosis.base.jsonable import JsonObject, as_float, copy_as_json, to_valid_text
from osmosis.engine.task import Deadline, Task, Waits
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.base import utc_now
from osmosis.records.protocol.messages import WireSample
from osmosis.records.run import rollout as records
from osmosis.records.run.plan import EvalPlan, RolloutLimits, Timeouts
from osmosis.sdk.classify import agent_error, true_cause
from osmosis.sdk.types import RolloutSample
from osmosis.sdk.user_code import LimitReached

_OF_ANSWER = ("usage", "finish_reason", "model", "fingerprint", "retries", "cached", "tokens")


class RolloutModel:
    """A model for one attempt: `ask` is for code of this process, `complete` for what answers calls from elsewhere."""

    def __init__(self, model: Model | None, task: Task, plan: EvalPlan | None = None) -> None:
        """Answer from `model`, which an agent without model calls lacks; without a plan there are no limits."""
        timeouts, limits = (plan.timeouts, plan.limits) if plan is not None else (Timeouts(agent_s=None), None)
        self.calls: list[records.ModelCall] = []
        self.messages: list[records.Message] = []
        self.offered: list[JsonObject] | None = None
        self.error: ModelError | None = None
        self.finish_reason: str | None = None
        self.queued_ms = 0.0
        self.on_wait: Callable[[float], None] | None = None
        max_time_s = limits.max_time_s if limits is not None else None
        times = [seconds for seconds in (timeouts.agent_s, max_time_s) if seconds is not None]
        self.deadline = Deadline(min(times, default=None))
        """The sooner of the agent's time limit, which fails the rollout, and the rollout's, which does not."""
        self._max_time_s = max_time_s if max_time_s != timeouts.agent_s else None
        self._limits = limits if limits is not None and limits.calls_differ else None
        self._reason: str | None = None
        self._model = model
        self.task = task
        self.started = time.monotonic()
        self.started_at = utc_now()
        self._waits = Waits()
        self._in_flight = 0
        self._ended = asyncio.Event()

    @property
    def limit_reached(self) -> str | None:
        if self._reason is not None:
            return self._reason
        is_time = self.deadline.fired and self.deadline.seconds == self._max_time_s and not self.task.left_behind
        return "max_time" if is_time else None

    @property
    def waited_ms(self) -> float:
        return self.queued_ms + self._waits.seconds * 1000

    @property
    def usage(self) -> records.Usage:
        if len(self.calls) == 1:
            return self.calls[0].usage
        return sum((call.usage for call in self.calls), records.Usage())

    async def ask(self, request: ChatRequest) -> Completion:
        """Answer code of this rollout; once the rollout is over it waits for its cancellation instead."""
        if self._reason is not None:
            self.deadline.end()  # the agent goes on: as with a time limit, it is cancelled, then left behind
        if self.deadline.fired:
            await asyncio.get_running_loop().create_future()
        return await self.complete(request)

    async def complete(self, request: ChatRequest) -> Completion:
        """Return the answer; raise `ModelError`, or `LimitReached` when the rollout may make no further call."""
        if self._model is None:
            raise ModelError("this agent has no model to ask", category=records.Category.UNKNOWN.value)
        if self._limits is not None:
            await self._check(self._limits, request.messages)
        task = self.task
        request.rollout_id, request.row_index, request.attempt = task.rollout_id, task.row.index, task.attempt
        request.on_wait = self.wait
        self.offered = request.tools or self.offered
        stage, task.stage = task.stage, "model call"
        started = task.since = time.monotonic()
        self._in_flight += 1
        try:
            done = await self._model.complete(request)
        except asyncio.CancelledError:
            self.messages = list(request.messages)
            raise
        except ModelError as error:
            self.error, self.messages = error, list(request.messages)
            self._add_call(started, error=f"{error.category}: {error.message}")
            raise
        finally:
            self._in_flight -= 1
            self._ended.set()
            task.stage, task.since = stage, time.monotonic()
        self.error, self.finish_reason = None, done.finish_reason
        self.messages = [*request.messages, done.message]
        self._add_call(started, done)
        return done

    def wait(self, seconds: float) -> None:
        self.task.enter(f"waiting {seconds:.0f} s for a rate limit")
        added_s = self._waits.add(seconds)
        self.deadline.extend(added_s)
        if self.on_wait is not None:
            self.on_wait(added_s)

    async def _check(self, limits: RolloutLimits, messages: list[records.Message]) -> None:
        while self._reason is None:
            if limits.reached(self.calls, len(messages), in_flight=self._in_flight) is None:
                return
            self._reason = limits.reached(self.calls, len(messages))
            if self._reason is None:
                self._ended.clear()
                await self._ended.wait()  # what is in flight may fail, or use less than is reserved for it
        self.messages = list(messages)
        raise LimitReached(self._reason, self.messages)

    def _add_call(self, started: float, done: Completion | None = None, error: str | None = None) -> None:
        answer = {name: getattr(done, name) for name in _OF_ANSWER} if done else {}
        started_ms, duration_ms = (started - self.started) * 1000, (time.monotonic() - started) * 1000
        call = records.ModelCall(
            started_ms=round(started_ms, 3), duration_ms=round(duration_ms, 3), error=error, **answer
        )
        self.calls.append(call)


REWARD = "reward"


def build_rollout(
    task: Task,
    model: RolloutModel,
    messages: list[records.Message] | None = None,
    *,
    failure: records.Failure | None = None,
    finish_reason: str | None = None,
    num_tool_calls: int = 0,
) -> records.Rollout:
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
    rollout = records.Rollout(
        rollout_id=task.rollout_id,
        row_index=row.index,
        attempt=task.attempt,
        step=task.step,
        row_key=row.key,
        status=records.RolloutStatus.FAILED if failure else records.RolloutStatus.SUCCESS,
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


def add_sample(rollout: records.Rollout, sample: RolloutSample | WireSample, *, graded: bool) -> None:
    rollout.metrics.update(numbers(sample.metrics))
    add_info(rollout, sample.extra_fields)
    if not graded:
        return
    if sample.remove_sample:
        rollout.status = records.RolloutStatus.SKIPPED
    elif sample.reward is not None:
        score = read_reward(sample.reward)
        if score.failure is None:
            score.reason = None if sample.reason is None else to_valid_text(sample.reason)
            score.parts = {to_valid_text(name): part for name, part in (sample.parts or {}).items()} or None
        rollout.scores[REWARD] = score


def add_info(rollout: records.Rollout, info: Mapping[str, object]) -> None:
    if not info:
        return
    refused: list[str] = []
    plain = own_json(info, "info", refused)
    assert isinstance(plain, dict)
    rollout.info.update(plain)
    if refused and rollout.failure is None:
        rollout.status, rollout.failure = records.RolloutStatus.FAILED, not_json(refused)


def numbers(measured: Mapping[str, object]) -> dict[str, float]:
    readings = {to_valid_text(str(name)): as_number(value) for name, value in measured.items()}
    return {name: number for name, (number, _) in readings.items() if number is not None}


def read_reward(value: object) -> records.Score:
    number, problem = as_number(value)
    if problem is None:
        return records.Score(name=REWARD, value=number)
    failure = records.Failure(
        phase=records.Phase.SCORE, category=records.Category.INVALID_SCORE, message=f"the agent's reward is {problem}"
    )
    return records.Score(name=REWARD, failure=failure)


_IDENTITY = ("rollout_id", "row_index", "attempt", "step", "row_key", "status", "failure", "started_at", "hashes")


def writable(rollout: records.Rollout) -> tuple[bytes, records.Rollout]:
    """Return the journal line of this rollout, and the rollout as that line has it."""
    try:
        return rollout.to_line(), rollout
    except Exception:  # noqa: BLE001 - user code left something: it costs its own rollout, never the journal
        refused: list[str] = []
        values = copy_as_json(rollout, "", refused)
        assert isinstance(values, dict)
        try:
            stored = records.Rollout(**{key: value for key, value in values.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            refused.append(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
            stored = records.Rollout(**{key: values[key] for key in _IDENTITY if values[key] is not None})
        if refused:
            stored.status, stored.scores = records.RolloutStatus.FAILED, {}
            stored.failure = stored.failure or not_json(refused)
        return stored.to_line(), stored


def own_json(value: object, path: str, refused: list[str]) -> Any:
    """Return a copy of `value` through JSON; replace values without a JSON form and add their paths to `refused`."""
    try:
        return orjson.loads(orjson.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return copy_as_json(value, path, refused)


def not_json(refused: list[str]) -> records.Failure:
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    problem = f"what the agent left cannot be stored as JSON: {refused[0]}{more}"
    return agent_error(problem, "keep only text, numbers, lists and dicts in messages and info")


def as_number(result: object) -> tuple[float | None, str | None]:
    try:
        value = as_float(result)
    except ValueError as error:
        return None, str(error)
    if abs(value) > records.LARGEST_SCORE:
        return (
            None,
            f"{value:g}, which is beyond {records.LARGEST_SCORE:g}: means and deviations of it cannot be computed",
        )
    return value, None
