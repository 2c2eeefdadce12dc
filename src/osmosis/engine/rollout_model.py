"""The model as one in-process rollout sees it: every call counted and timed, the conversation remembered.

Waiting for a rate limit moves the rollout's deadline. Nothing is decided here about what the agent makes of a call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis.base.json_types import JsonObject
from osmosis.errors import ModelError
from osmosis.llm.model import STREAMING, ChatRequest, Completion, Model
from osmosis.records.loop_request import RolloutMetrics
from osmosis.records.plan import RolloutLimits
from osmosis.records.rollout import Message, ModelCall, Usage
from osmosis.sdk.agent_loop import CompletionsResult
from osmosis.sdk.driven import LimitReached

from .clock import Deadline, Waits
from .task import Task


class RolloutLLM:
    """The model as one rollout of an agent loop sees it; remembers the calls and the conversation."""

    def __init__(
        self,
        model: Model,
        task: Task,
        deadline: Deadline,
        tools: Sequence[Mapping[str, object]] | None,
        limits: RolloutLimits | None = None,
    ) -> None:
        """`limits` are looked at before each call; None: there are none but the time."""
        self._model = model
        self._task = task
        self._deadline = deadline
        self._tools = tools
        self._started = time.monotonic()
        self.calls: list[ModelCall] = []
        self.messages: list[Message] = []
        self.offered: list[JsonObject] | None = None
        """The tools of the last call that had any."""
        self.error: ModelError | None = None
        self.finish_reason: str | None = None
        self._waits = Waits()
        self._limits = limits
        self.limit_reached: str | None = None
        """The finish reason, when a limit of the rollout ended it."""

    async def chat_completions(self, messages: list[Message], **kwargs: object) -> CompletionsResult:
        """One call; `tools` replaces the rollout's own, `on_piece` hears the answer while it is written, everything
        else is a sampling parameter."""
        tools = kwargs.pop("tools", self._tools)
        done = await self.ask(messages, tools, kwargs)
        return CompletionsResult.of(done)

    async def ask(self, messages: list[Message], tools: object, params: dict[str, object]) -> Completion:
        task = self._task
        if self._deadline.fired:
            # The time is up: code that goes on after its cancellation asks, and spends, nothing more.
            await asyncio.get_running_loop().create_future()
        if self._limits is not None:
            await self._check(self._limits, messages)
        stage, task.stage = task.stage, "model call"
        offered = plain_tools(tools) if tools else None
        request = ChatRequest(messages, offered, params, task.rollout_id, task.row.index, task.attempt, self.wait)
        if params:
            listener = params.pop("on_piece", None)
            if callable(listener):
                request.on_piece = listener
            if not STREAMING.isdisjoint(params):
                request.params = {name: value for name, value in params.items() if name not in STREAMING}
        if offered:
            self.offered = offered
        started = task.since = time.monotonic()
        try:
            done = await self._model.complete(request)
        except asyncio.CancelledError:
            self.messages = list(messages)
            raise
        except ModelError as error:
            self.error = error
            self.messages = list(messages)
            self._note(started, error=error)
            raise
        finally:
            task.stage, task.since = stage, time.monotonic()
        self.error = None
        self.messages = [*messages, done.message]
        self.finish_reason = done.finish_reason
        self._note(started, done)
        return done

    async def _check(self, limits: RolloutLimits, messages: list[Message]) -> None:
        if self.limit_reached is not None:  # the agent went on: as with a time limit, it is cancelled, then left behind
            self._deadline.end()
            await asyncio.get_running_loop().create_future()
        reason = limits.reached(self.calls, len(messages))
        if reason is not None:
            self.limit_reached, self.messages = reason, list(messages)
            raise LimitReached(reason, self.messages)

    def get_metrics(self) -> RolloutMetrics:
        usage, calls = self.usage(), self.calls
        return RolloutMetrics.made(
            total_latency_ms=0.0,
            llm_latency_ms=sum([call.duration_ms for call in calls]),
            tool_latency_ms=0.0,
            num_llm_calls=len(calls),
            num_tool_calls=0,
            prompt_tokens=usage.prompt_tokens,
            response_tokens=usage.completion_tokens,
            max_context_tokens=max([call.usage.total_tokens for call in calls], default=0),
        )

    def usage(self) -> Usage:
        return sum_usage(self.calls)

    @property
    def waited_ms(self) -> float:
        """Time spent waiting for rate limits."""
        return self._waits.seconds * 1000

    def wait(self, seconds: float) -> None:
        """A wait for a rate limit begins: it is not the agent's time."""
        self._task.enter(waiting(seconds))
        self._deadline.extend(self._waits.add(seconds))

    def _note(self, started: float, done: Completion | None = None, error: ModelError | None = None) -> None:
        """One call that ended just now."""
        started_ms = round((started - self._started) * 1000, 3)
        duration_ms = round((time.monotonic() - started) * 1000, 3)
        if done is None:
            why = f"{error.category}: {error.message}" if error else None
            self.calls.append(ModelCall.made(started_ms=started_ms, duration_ms=duration_ms, error=why))
            return
        self.calls.append(
            ModelCall.whole(
                {
                    "started_ms": started_ms,
                    "duration_ms": duration_ms,
                    "usage": done.usage,
                    "finish_reason": done.finish_reason,
                    "model": done.model,
                    "fingerprint": done.fingerprint,
                    "retries": done.retries,
                    "cached": done.cached,
                    "error": None,
                    "tokens": done.tokens,
                }
            )
        )


def waiting(seconds: float) -> str:
    """The stage of a rollout that waits for a rate limit."""
    return f"waiting {seconds:.0f} s for a rate limit"


def sum_usage(calls: list[ModelCall]) -> Usage:
    """Tokens and money of all calls; the cost of unpriced calls is unknown, not zero."""
    if len(calls) == 1:
        return calls[0].usage
    total = Usage()
    for call in calls:
        total = total + call.usage
    return total


def plain_tools(tools: Any) -> list[JsonObject] | None:
    """Tools as a chat request carries them."""
    if not tools:
        return None
    return [tool if isinstance(tool, dict) else tool.model_dump(mode="json", exclude_none=True) for tool in tools]
