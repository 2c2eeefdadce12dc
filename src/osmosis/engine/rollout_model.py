import asyncio
import time
from collections.abc import Callable

from osmosis.base.jsonable import JsonObject
from osmosis.engine.task import Deadline, Task, Waits
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.base import utc_now
from osmosis.records.run.plan import EvalPlan, RolloutLimits, Timeouts
from osmosis.records.run.rollout import Category, Message, ModelCall, Usage
from osmosis.sdk.user_code import LimitReached

_OF_ANSWER = ("usage", "finish_reason", "model", "fingerprint", "retries", "cached", "tokens")


class RolloutModel:
    """A model for one attempt: `ask` is for code of this process, `complete` for what answers calls from elsewhere."""

    def __init__(self, model: Model | None, task: Task, plan: EvalPlan | None = None) -> None:
        """Answer from `model`, which an agent without model calls lacks; without a plan there are no limits."""
        timeouts, limits = (plan.timeouts, plan.limits) if plan is not None else (Timeouts(agent_s=None), None)
        self.calls: list[ModelCall] = []
        self.messages: list[Message] = []
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
    def usage(self) -> Usage:
        if len(self.calls) == 1:
            return self.calls[0].usage
        return sum((call.usage for call in self.calls), Usage())

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
            raise ModelError("this agent has no model to ask", category=Category.UNKNOWN.value)
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

    async def _check(self, limits: RolloutLimits, messages: list[Message]) -> None:
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
        call = ModelCall(started_ms=round(started_ms, 3), duration_ms=round(duration_ms, 3), error=error, **answer)
        self.calls.append(call)
