"""One attempt by a workflow and its grader, in this process, through the SDK's `LocalBackend`.

`ctx.chat()` reaches the model directly; a workflow that brings a vendor's client gets a URL from `Endpoints`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis.base.json_types import JsonObject
from osmosis.base.plain_json import own_copy
from osmosis.errors import ModelError
from osmosis.llm.chat_format import completion_body
from osmosis.llm.model import Model
from osmosis.records.base import utc_now
from osmosis.records.plan import EvalPlan, RolloutLimits
from osmosis.records.rollout import Message, ModelCall, Phase, Rollout, Score, Usage
from osmosis.records.wire import RolloutInit
from osmosis.sdk.backend import ExecutionResult
from osmosis.sdk.classify import true_cause

from .agent import Agent
from .ended import REWARD, Ended, add_info, add_sample, agent_deadline, overran, rollout_of, time_limit, tool_results
from .rollout_model import RolloutLLM
from .task import Task

LOCAL_URL = "http://local-rollout.local"


class HttpModelEndpoint(Protocol):
    """One rollout's model endpoint over HTTP."""

    @property
    def chat_completions_url(self) -> str: ...

    bearer: str
    calls: list[ModelCall]
    usage: Usage
    messages: list[Message]
    model_error: ModelError | None
    finish_reason: str | None
    on_wait: Callable[[float], None] | None
    """Hears of each wait for a rate limit, before it."""
    on_state: Callable[[str], None] | None
    limits: RolloutLimits | None
    limit_reached: str | None
    offered: list[JsonObject] | None


class Endpoints(Protocol):
    """Gives a workflow a URL for its model calls; `serve.TrainGate` is one."""

    def open_rollout(self, rollout_id: str, *, row_index: int = 0, attempt: int = 0) -> HttpModelEndpoint: ...

    def close_rollout(self, endpoint: Any) -> None: ...


@dataclass(slots=True)
class _OverHttp:
    """What was called and said at an attempt's own endpoint; closing the endpoint forgets it."""

    url: str = LOCAL_URL
    bearer: str | None = None
    calls: list[ModelCall] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    offered: list[JsonObject] | None = None
    model_error: ModelError | None = None
    finish_reason: str | None = None
    limit_reached: str | None = None


@contextmanager
def _endpoint(endpoints: Endpoints | None, task: Task, llm: RolloutLLM, plan: EvalPlan) -> Iterator[_OverHttp]:
    """The attempt's endpoint inside the block; what came of it afterwards. Without `endpoints`, nothing."""
    kept = _OverHttp()
    if endpoints is None:
        yield kept
        return
    opened = endpoints.open_rollout(task.rollout_id, row_index=task.row.index, attempt=task.attempt)
    opened.on_wait, opened.on_state, opened.limits = llm.wait, task.enter, plan.limits
    kept.url, kept.bearer = opened.chat_completions_url, opened.bearer
    try:
        yield kept
    finally:
        kept.calls, kept.messages = list(opened.calls), list(opened.messages)
        kept.model_error, kept.finish_reason = opened.model_error, opened.finish_reason
        kept.limit_reached, kept.offered = opened.limit_reached, opened.offered
        endpoints.close_rollout(opened)


async def run_workflow(agent: Agent, model: Model, plan: EvalPlan, task: Task, endpoints: Endpoints | None) -> Rollout:
    started_at, started = utc_now(), time.monotonic()
    assert agent.backend is not None
    # The limit is kept here, not in the backend: waiting for a rate limit must be able to move it.
    deadline = agent_deadline(plan)
    llm = RolloutLLM(model, task, deadline, None, plan.limits if plan.limits.calls_differ else None)

    async def transport(body: JsonObject) -> dict[str, object]:
        params = {k: v for k, v in body.items() if k not in ("model", "messages", "tools", "stream")}
        done = await llm.ask(body["messages"], body.get("tools"), params)
        return completion_body(done)

    def on_state(state: str) -> None:
        task.enter({"grading": "score", "running": "agent"}.get(state, state))
        if state == "running":
            deadline.restart()
        elif state == "grading":
            deadline.stop()

    with _endpoint(endpoints, task, llm, plan) as over_http:
        init = _init(task, plan, over_http)
        try:
            with deadline:
                done = await agent.backend.execute(init, on_state=on_state, transport=transport)
        except asyncio.TimeoutError:
            done = ExecutionResult("failure", err_phase=Phase.AGENT, failure=overran(deadline, task, "the workflow"))
    failure = done.failure if done.err_phase is not Phase.SCORE else None
    if failure is not None and not deadline.fired:
        failure = true_cause(failure, llm.error or over_http.model_error)
    said = done.sample.messages if done.sample else None
    messages = list(said or llm.messages or over_http.messages or task.row.messages())
    rollout = rollout_of(
        task,
        Ended(
            messages,
            failure,
            sorted([*llm.calls, *over_http.calls], key=lambda call: call.started_ms),
            started_at,
            started,
            llm.waited_ms + done.queue_ms,
            finish_reason=llm.finish_reason or over_http.finish_reason,
            num_tool_calls=tool_results(messages),
            tools=llm.offered or over_http.offered,
            limit=llm.limit_reached or over_http.limit_reached or time_limit(plan, deadline, task),
        ),
    )
    add_info(rollout, done.info)
    if done.sample is not None:
        add_sample(rollout, done.sample, graded=done.status == "success")
    if done.err_phase is Phase.SCORE and done.failure is not None:
        rollout.scores[REWARD] = Score(name=REWARD, failure=done.failure)
    return rollout


def _init(task: Task, plan: EvalPlan, over_http: _OverHttp) -> RolloutInit:
    return RolloutInit(
        initial_messages=task.row.messages(),
        label=task.row.ground_truth,
        metadata=_metadata(task),
        rollout_id=task.rollout_id,
        chat_completions_url=over_http.url,
        llm_api_key=over_http.bearer,
        controller_api_key=None,
        completion_callback_url=None,
        grader_callback_url=None,
        grade=True,
        agent_timeout_sec=None,
        grader_timeout_sec=plan.timeouts.score_s,
        extra_fields=None,
    )


def _metadata(task: Task) -> dict[str, object]:
    own = task.row.metadata
    return {key: own_copy(value) for key, value in (task.row.data if own is None else own).items()}
