"""Runs one attempt in this process: an agent loop or a workflow with its grader, against a `Model`.

Whatever user code does, the result is one `Rollout`: its conversation as far as it came, every model call with
usage and latency, and a failure that says whose fault it was. Scores of score functions are added by the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic import ValidationError as PydanticError

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.base import utc_now
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import (
    Category,
    Failure,
    Message,
    ModelCall,
    Phase,
    Rollout,
    RolloutStatus,
    Score,
    Usage,
)
from osmosis.records.wire import RolloutInit
from osmosis.records.wire02 import RolloutMetrics, RolloutRequest
from osmosis.sdk.agent_loop import CompletionsResult, RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.tools import tool_time_limit

from .agent import Agent, as_agent
from .clock import Deadline
from .failures import failure_of, tail
from .task import RolloutFn, Task

LOCAL_URL = "http://local-rollout.local"
DEFAULT_MAX_TOKENS_TOTAL = 8192
REWARD = "reward"
_REQUEST = RolloutRequest(rollout_id="local", server_url=LOCAL_URL, messages=[], completion_params={})


class RolloutEndpoint(Protocol):
    """One rollout's model endpoint over HTTP."""

    @property
    def chat_completions_url(self) -> str: ...

    bearer: str
    calls: list[ModelCall]
    usage: Usage
    messages: list[Message]
    model_error: ModelError | None


class Endpoints(Protocol):
    """Gives a workflow a URL for its model calls; `serve.TrainGate` is one."""

    def open_rollout(self, rollout_id: str, *, row_index: int = 0, attempt: int = 0) -> Any: ...

    def close_rollout(self, gate: Any) -> None: ...


@asynccontextmanager
async def in_process(
    agent: Any, model: Model, plan: EvalPlan, *, endpoints: Endpoints | None = None
) -> AsyncIterator[RolloutFn]:
    """The `RolloutFn` of an agent: an `Agent`, an agent loop, a workflow class or a `LocalBackend`.

    `endpoints` gives workflows that bring a vendor's client a URL; those that use `ctx.chat()` need none.
    """
    found = as_agent(agent)
    tool_time_limit.set(plan.timeouts.tool_s)

    async def run(task: Task) -> Rollout:
        if found.loop is not None:
            return await _run_loop(found.loop, model, plan, task)
        return await _run_workflow(found, model, plan, task, endpoints)

    yield run


class RolloutLLM:
    """The model as one rollout of an agent loop sees it; remembers the calls and the conversation."""

    def __init__(self, model: Model, task: Task, deadline: Deadline, tools: list[dict[str, Any]] | None) -> None:
        self._model = model
        self._task = task
        self._deadline = deadline
        self._tools = tools
        self._started = time.perf_counter()
        self.calls: list[ModelCall] = []
        self.messages: list[Message] = []
        self.error: ModelError | None = None
        self.finish_reason: str | None = None
        self.waited_ms = 0.0

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult:
        """One call; `tools` replaces the rollout's own, everything else is a sampling parameter."""
        tools = kwargs.pop("tools", self._tools)
        done = await self.ask(messages, tools, kwargs)
        usage = done.usage
        return CompletionsResult(
            message=done.message,
            token_ids=done.token_ids or [],
            logprobs=done.logprobs or [],
            usage={
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            },
            finish_reason=done.finish_reason or "stop",
        )

    async def ask(self, messages: list[Message], tools: Any, params: dict[str, Any]) -> Completion:
        task = self._task
        stage = task.stage
        task.enter("model call")
        request = ChatRequest(
            messages, plain_tools(tools), params, task.rollout_id, task.row.index, task.attempt, self._wait
        )
        started = time.perf_counter()
        try:
            done = await self._model.complete(request)
        except ModelError as error:
            self.error = error
            self.messages = list(messages)
            self._note(started, error=error)
            raise
        finally:
            task.enter(stage)
        self.error = None
        self.messages = [*messages, done.message]
        self.finish_reason = done.finish_reason
        self._note(started, done)
        return done

    def get_metrics(self) -> RolloutMetrics:
        usage = self.usage()
        return RolloutMetrics(
            total_latency_ms=0.0,
            llm_latency_ms=sum(call.duration_ms for call in self.calls),
            tool_latency_ms=0.0,
            num_llm_calls=len(self.calls),
            num_tool_calls=0,
            prompt_tokens=usage.prompt_tokens,
            response_tokens=usage.completion_tokens,
            max_context_tokens=max((call.usage.total_tokens for call in self.calls), default=0),
        )

    def usage(self) -> Usage:
        return sum_usage(self.calls)

    def _wait(self, seconds: float) -> None:
        """Time spent waiting for a rate limit is not the agent's."""
        self._task.enter(f"waiting {seconds:.0f} s for a rate limit")
        self.waited_ms += seconds * 1000
        self._deadline.extend(seconds)

    def _note(self, started: float, done: Completion | None = None, error: ModelError | None = None) -> None:
        self.calls.append(
            ModelCall(
                started_ms=round((started - self._started) * 1000, 3),
                duration_ms=round((time.perf_counter() - started) * 1000, 3),
                usage=done.usage if done else Usage(),
                finish_reason=done.finish_reason if done else None,
                model=done.model if done else None,
                retries=done.retries if done else 0,
                cached=done.cached if done else False,
                error=f"{error.category}: {error.message}" if error else None,
            )
        )


async def _run_loop(loop: RolloutAgentLoop, model: Model, plan: EvalPlan, task: Task) -> Rollout:
    started_at, started = utc_now(), time.monotonic()
    task.enter("agent")
    opening = task.row.messages()
    deadline = Deadline(plan.timeouts.agent_s)
    llm = RolloutLLM(model, task, deadline, None)
    result: RolloutResult | None = None
    context: RolloutContext | None = None
    failure: Failure | None = None
    try:
        with deadline:
            request = _request(plan, model, task, opening)
            tools = loop.get_tools(request)
            llm._tools = plain_tools(tools)
            context = RolloutContext(request=request, tools=tools, llm=llm, _start_time=started)
            result = await loop.run(context)
        failure = _refusal(result, llm)
    except asyncio.TimeoutError as error:
        failure = _overrun(deadline, plan, task, error)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - one rollout: an agent may raise anything
        failure = failure_of(error)
    ended = result if isinstance(result, RolloutResult) else None
    messages = list((ended.final_messages if ended else None) or llm.messages or opening)
    counted = context._num_tool_calls if context is not None else 0
    rollout = _rollout(
        task,
        _Ended(
            messages,
            failure,
            llm.calls,
            started_at,
            started,
            llm.waited_ms,
            finish_reason=(ended.finish_reason if ended else None) or llm.finish_reason,
            num_tool_calls=counted or tool_results(messages),
        ),
    )
    if isinstance(result, RolloutResult) and failure is None and result.reward is not None:
        rollout.scores[REWARD] = own_reward(result.reward)
    return rollout


def _request(plan: EvalPlan, model: Model, task: Task, opening: list[Message]) -> RolloutRequest:
    metadata = {
        **task.row.data,
        "row_index": task.row.index,
        "execution_mode": "eval",
        "run_index": task.attempt,
    }
    # A copy of one checked request, made by hand: the wire's own checks (a limit on metadata, for one) are not this
    # row's, and pydantic's copy would cost as much as a share of the model call.
    request = RolloutRequest.__new__(RolloutRequest)
    fields = {
        **_REQUEST.__dict__,
        "rollout_id": task.rollout_id,
        "messages": opening,
        "completion_params": dict(model.spec.params),
        "max_turns": plan.max_turns,
        "max_tokens_total": plan.max_tokens_total or DEFAULT_MAX_TOKENS_TOTAL,
        "metadata": metadata,
    }
    for name, value in (
        ("__dict__", fields),
        ("__pydantic_fields_set__", set(fields)),
        ("__pydantic_extra__", None),
        ("__pydantic_private__", None),
    ):
        object.__setattr__(request, name, value)
    return request


def _refusal(result: Any, llm: RolloutLLM) -> Failure | None:
    """Why a result that came back is none: the agent's own error, or something that is no result."""
    if not isinstance(result, RolloutResult):
        return Failure(
            phase=Phase.AGENT,
            category=Category.AGENT_ERROR,
            message=f"run() returned {type(result).__name__} instead of a RolloutResult",
            fix="return ctx.complete(messages) or ctx.error(message)",
        )
    if not isinstance(result.final_messages, list) or not all(isinstance(m, dict) for m in result.final_messages):
        result.final_messages = []
        return Failure(
            phase=Phase.AGENT, category=Category.AGENT_ERROR, message="final_messages is no list of messages"
        )
    if str(getattr(result.status, "value", result.status)).upper() == "COMPLETED":
        return None
    if llm.error is not None:
        return failure_of(llm.error)
    message = result.error_message or "the agent ended with status ERROR and gave no reason"
    return Failure(phase=Phase.AGENT, category=Category.AGENT_ERROR, message=message[:2000])


async def _run_workflow(agent: Agent, model: Model, plan: EvalPlan, task: Task, endpoints: Endpoints | None) -> Rollout:
    started_at, started = utc_now(), time.monotonic()
    assert agent.backend is not None
    opening = task.row.messages()
    llm = RolloutLLM(model, task, Deadline(None), None)
    gate: Any = None
    if endpoints is not None:
        gate = endpoints.open_rollout(task.rollout_id, row_index=task.row.index, attempt=task.attempt)

    async def transport(body: dict[str, Any]) -> dict[str, Any]:
        params = {k: v for k, v in body.items() if k not in ("model", "messages", "tools", "stream")}
        done = await llm.ask(body["messages"], body.get("tools"), params)
        return completion_body(done)

    def on_state(state: str) -> None:
        task.enter({"grading": "score", "running": "agent"}.get(state, state))

    init = RolloutInit(
        initial_messages=opening,
        label=task.row.ground_truth,
        metadata=_metadata(task),
        rollout_id=task.rollout_id,
        chat_completions_url=gate.chat_completions_url if gate is not None else LOCAL_URL,
        llm_api_key=gate.bearer if gate is not None else None,
        controller_api_key=None,
        completion_callback_url=None,
        grader_callback_url=None,
        grade=True,
        agent_timeout_sec=plan.timeouts.agent_s,
        grader_timeout_sec=plan.timeouts.score_s,
        extra_fields=None,
    )
    try:
        done = await agent.backend.execute(init, on_state=on_state, transport=transport)
    finally:
        if gate is not None:
            endpoints.close_rollout(gate)  # type: ignore[union-attr]
    calls = sorted([*llm.calls, *(gate.calls if gate is not None else ())], key=lambda call: call.started_ms)
    failure = done.failure if done.err_phase is not Phase.SCORE else None
    model_error = llm.error or (gate.model_error if gate is not None else None)
    if failure is not None and model_error is not None:
        failure = failure_of(model_error)
    sample = done.sample
    talked = llm.messages or (gate.messages if gate is not None else [])
    messages = list((sample.messages if sample else None) or talked or opening)
    rollout = _rollout(
        task,
        _Ended(
            messages,
            failure,
            calls,
            started_at,
            started,
            llm.waited_ms + done.queue_ms,
            finish_reason=llm.finish_reason or (gate.finish_reason if gate is not None else None),
            num_tool_calls=tool_results(messages),
        ),
    )
    rollout.info = dict(done.info)
    if sample is not None:
        rollout.metrics = {k: float(v) for k, v in sample.metrics.items() if isinstance(v, (int, float))}
        rollout.info.update(sample.extra_fields)
        if sample.remove_sample:
            rollout.status = RolloutStatus.SKIPPED
        elif sample.reward is not None and done.status == "success":
            rollout.scores[REWARD] = Score(name=REWARD, value=sample.reward)
    if done.err_phase is Phase.SCORE and done.failure is not None:
        rollout.scores[REWARD] = Score(name=REWARD, failure=done.failure)
    return rollout


def _metadata(task: Task) -> dict[str, Any]:
    own = task.row.metadata
    return own if own is not None else dict(task.row.data)


def tool_results(messages: list[Message]) -> int:
    """How many tools answered in this conversation."""
    return sum(1 for message in messages if message.get("role") == "tool")


@dataclass(slots=True)
class _Ended:
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


def _rollout(task: Task, ended: _Ended) -> Rollout:
    values: dict[str, Any] = {
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
        # What an agent leaves may have keys that are no text and the like: kept as text.
        values["messages"] = [{str(key): value for key, value in m.items()} for m in ended.messages]
        values["finish_reason"] = None if ended.finish_reason is None else str(ended.finish_reason)
        return Rollout(**values)


def _overrun(deadline: Deadline, plan: EvalPlan, task: Task, error: BaseException) -> Failure:
    if deadline.fired:
        message = f"the agent did not finish within {plan.timeouts.agent_s:g} s"
        fix = "raise --agent-timeout, or look for calls that never return"
        return Failure(phase=Phase.AGENT, category=Category.TIMEOUT, message=message, fix=fix)
    message = f"{type(error).__name__} in the agent"
    return Failure(phase=Phase.AGENT, category=Category.TIMEOUT, message=message, traceback=tail(error))


def own_reward(value: Any) -> Score:
    """The agent's own reward as a score; one that is no finite number is a failure."""
    from .scoring import as_number

    number, problem = as_number(value)
    if problem is None:
        return Score(name=REWARD, value=number)
    failure = Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message=f"the agent's reward is {problem}")
    return Score(name=REWARD, failure=failure)


def sum_usage(calls: list[ModelCall]) -> Usage:
    """Tokens and money of all calls; the cost of unpriced calls is unknown, not zero."""
    if len(calls) == 1:
        return calls[0].usage
    total = Usage()
    for call in calls:
        total = total + call.usage
    return total


def plain_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools as a chat request carries them."""
    if not tools:
        return None
    return [tool if isinstance(tool, dict) else tool.model_dump(mode="json", exclude_none=True) for tool in tools]


def completion_body(done: Completion) -> dict[str, Any]:
    """A completion in the shape of a chat-completions reply."""
    usage = done.usage
    return {
        "id": done.raw_id or "chatcmpl-local",
        "object": "chat.completion",
        "model": done.model,
        "choices": [{"index": 0, "message": done.message, "finish_reason": done.finish_reason}],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
        "token_ids": done.token_ids,
        "logprobs": done.logprobs,
    }
