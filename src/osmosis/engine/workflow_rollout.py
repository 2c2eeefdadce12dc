"""One attempt by a workflow and its grader, in this process, through the SDK's `LocalBackend`.

`ctx.chat()` reaches the model directly; a workflow that brings a vendor's client gets a URL from `Endpoints`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from osmosis.errors import ModelError
from osmosis.llm.chat_format import completion_body
from osmosis.llm.model import Model
from osmosis.records.base import utc_now
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Message, ModelCall, Phase, Rollout, Score, Usage
from osmosis.records.wire import RolloutInit
from osmosis.sdk.backend import ExecutionResult
from osmosis.sdk.classify import overrun, true_cause

from .agent import Agent
from .clock import Deadline
from .ended import REWARD, Ended, add_sample, rollout_of, tool_results
from .rollout_model import RolloutLLM
from .task import Task

LOCAL_URL = "http://local-rollout.local"


class ModelEndpoint(Protocol):
    """One rollout's model endpoint over HTTP."""

    @property
    def chat_completions_url(self) -> str: ...

    bearer: str
    calls: list[ModelCall]
    usage: Usage
    messages: list[Message]
    model_error: ModelError | None
    on_wait: Callable[[float], None] | None
    """Hears of each wait for a rate limit, before it."""
    on_state: Callable[[str], None] | None


class Endpoints(Protocol):
    """Gives a workflow a URL for its model calls; `serve.TrainGate` is one."""

    def open_rollout(self, rollout_id: str, *, row_index: int = 0, attempt: int = 0) -> Any: ...

    def close_rollout(self, gate: Any) -> None: ...


async def run_workflow(agent: Agent, model: Model, plan: EvalPlan, task: Task, endpoints: Endpoints | None) -> Rollout:
    started_at, started = utc_now(), time.monotonic()
    assert agent.backend is not None
    opening = task.row.messages()
    # The limit is kept here, not in the backend: waiting for a rate limit must be able to move it.
    deadline = Deadline(plan.timeouts.agent_s)
    llm = RolloutLLM(model, task, deadline, None)
    gate: Any = None
    over_http: list[ModelCall] = []
    said_over_http: list[Message] = []
    if endpoints is not None:
        gate = endpoints.open_rollout(task.rollout_id, row_index=task.row.index, attempt=task.attempt)
        gate.on_wait, gate.on_state = llm.wait, task.enter

    async def transport(body: dict[str, Any]) -> dict[str, Any]:
        params = {k: v for k, v in body.items() if k not in ("model", "messages", "tools", "stream")}
        done = await llm.ask(body["messages"], body.get("tools"), params)
        return completion_body(done)

    def on_state(state: str) -> None:
        task.enter({"grading": "score", "running": "agent"}.get(state, state))
        if state == "running":
            deadline.restart()
        elif state == "grading":
            deadline.stop()

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
        agent_timeout_sec=None,
        grader_timeout_sec=plan.timeouts.score_s,
        extra_fields=None,
    )
    try:
        with deadline:
            done = await agent.backend.execute(init, on_state=on_state, transport=transport)
    except asyncio.TimeoutError:
        done = ExecutionResult("failure", err_phase=Phase.AGENT, failure=overrun(deadline.seconds or 0.0))
    finally:
        if gate is not None:
            # Closing forgets what was called and said.
            over_http, said_over_http = list(gate.calls), list(gate.messages)
            endpoints.close_rollout(gate)  # type: ignore[union-attr]
    calls = sorted([*llm.calls, *over_http], key=lambda call: call.started_ms)
    failure = done.failure if done.err_phase is not Phase.SCORE else None
    model_error = llm.error or (gate.model_error if gate is not None else None)
    if failure is not None and not deadline.fired:
        failure = true_cause(failure, model_error)
    sample = done.sample
    talked = llm.messages or said_over_http
    messages = list((sample.messages if sample else None) or talked or opening)
    rollout = rollout_of(
        task,
        Ended(
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
        add_sample(rollout, sample, graded=done.status == "success")
    if done.err_phase is Phase.SCORE and done.failure is not None:
        rollout.scores[REWARD] = Score(name=REWARD, failure=done.failure)
    return rollout


def _metadata(task: Task) -> dict[str, Any]:
    own = task.row.metadata
    return own if own is not None else dict(task.row.data)
