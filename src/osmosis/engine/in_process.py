"""Runs one attempt in this process: an agent loop or a workflow with its grader, against a `Model`.

Whatever user code does, the result is one `Rollout`: its conversation as far as it came, every model call with
usage and latency, and a failure that says whose fault it was. Scores of score functions are added by the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from osmosis.base.plain_json import own_copy, whole_text
from osmosis.llm.model import Model
from osmosis.records.base import utc_now
from osmosis.records.loop_request import RolloutRequest
from osmosis.records.plan import EvalPlan, RolloutLimits
from osmosis.records.rollout import Category, Failure, Message, Phase, Rollout
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.calls import tool_time_limit
from osmosis.sdk.classify import failure_of, true_cause
from osmosis.sdk.driven import LimitReached

from .agent import as_agent
from .ended import REWARD, Ended, agent_deadline, overran, own_reward, rollout_of, time_limit, tool_results
from .rollout_model import RolloutLLM, plain_tools
from .task import RolloutFn, Task

if TYPE_CHECKING:
    from .workflow_rollout import Endpoints

__all__ = ["DEFAULT_MAX_TOKENS_TOTAL", "in_process", "plain_tools", "tool_results"]

LOCAL_URL = "http://local-rollout.local"
DEFAULT_MAX_TOKENS_TOTAL = 8192


@asynccontextmanager
async def in_process(
    agent: object, model: Model, plan: EvalPlan, *, endpoints: Endpoints | None = None
) -> AsyncIterator[RolloutFn]:
    """The `RolloutFn` of an agent: an `Agent`, an agent loop, a workflow class or a `LocalBackend`.

    `endpoints` gives workflows that bring a vendor's client a URL; those that use `ctx.chat()` need none.
    """
    found = as_agent(agent)
    limits = plan.limits if plan.limits.calls_differ else None
    tool_time_limit.set(plan.timeouts.tool_s)

    def run(task: Task) -> Awaitable[Rollout]:
        if found.loop is not None:
            return _run_loop(found.loop, model, plan, task, limits)
        # An agent loop needs none of the workflow's side: it is most of what there is to import here.
        from .workflow_rollout import run_workflow

        return run_workflow(found, model, plan, task, endpoints)

    yield run


async def _run_loop(
    loop: RolloutAgentLoop, model: Model, plan: EvalPlan, task: Task, limits: RolloutLimits | None
) -> Rollout:
    started_at, started = utc_now(), time.monotonic()
    task.enter("agent")
    opening = task.row.messages()
    deadline = agent_deadline(plan)
    llm = RolloutLLM(model, task, deadline, None, limits)
    result: RolloutResult | None = None
    context: RolloutContext | None = None
    failure: Failure | None = None

    async def drive() -> RolloutResult:
        nonlocal context
        request = _request(plan, model, task, opening)
        tools = loop.get_tools(request)
        llm._tools = plain_tools(tools)
        context = RolloutContext(request=request, tools=tools, llm=llm, _start_time=started)
        return await loop.run(context)

    try:
        with deadline:
            result = await deadline.run(drive())
        failure = _refusal(result)
    except asyncio.CancelledError:
        raise
    except LimitReached:
        pass
    except Exception as error:  # noqa: BLE001 - one rollout: an agent may raise anything
        failure = overran(deadline, task, "the agent") if deadline.fired else failure_of(error, Phase.AGENT)
    limit = llm.limit_reached or time_limit(plan, deadline, task)
    if failure is not None and not deadline.fired:
        failure = true_cause(failure, llm.error)
    ended = result if isinstance(result, RolloutResult) else None
    messages = list((ended.final_messages if ended else None) or llm.messages or opening)
    counted = context._num_tool_calls if context is not None else 0
    rollout = rollout_of(
        task,
        Ended(
            messages,
            failure,
            llm.calls,
            started_at,
            started,
            llm.waited_ms,
            finish_reason=(ended.finish_reason if ended else None) or llm.finish_reason,
            num_tool_calls=counted or tool_results(messages),
            tools=llm.offered,
            limit=limit,
        ),
    )
    if isinstance(result, RolloutResult) and failure is None and result.reward is not None:
        rollout.scores[REWARD] = own_reward(result.reward)
    return rollout


def _request(plan: EvalPlan, model: Model, task: Task, opening: list[Message]) -> RolloutRequest:
    metadata = {
        **own_copy(task.row.data),
        "row_index": task.row.index,
        "execution_mode": "eval",
        "run_index": task.attempt,
    }
    # Made, not checked: the wire's own rules (a limit on metadata, for one) are not this row's.
    return RolloutRequest.whole(
        {
            "rollout_id": task.rollout_id,
            "server_url": LOCAL_URL,
            "messages": opening,
            "completion_params": dict(model.spec.params),
            "tool_server_url": None,
            "max_turns": plan.max_turns,
            "max_tokens_total": plan.max_tokens_total or DEFAULT_MAX_TOKENS_TOTAL,
            "metadata": metadata,
            "api_key": None,
            "idempotency_key": None,
        }
    )


def _refusal(result: object) -> Failure | None:
    """Why a returned result does not count: the agent's own error, or a value that is not a result."""
    if not isinstance(result, RolloutResult):
        return Failure(
            phase=Phase.AGENT,
            category=Category.AGENT_ERROR,
            message=f"run() returned {type(result).__name__} instead of a RolloutResult",
            fix="return ctx.complete(messages) or ctx.error(message)",
        )
    if not isinstance(result.final_messages, list) or not all([isinstance(m, dict) for m in result.final_messages]):
        result.final_messages = []
        return Failure(
            phase=Phase.AGENT, category=Category.AGENT_ERROR, message="final_messages is not a list of messages"
        )
    if str(getattr(result.status, "value", result.status)).upper() == "COMPLETED":
        return None
    message = whole_text(str(result.error_message or "the agent returned status ERROR without a reason"))
    return Failure(phase=Phase.AGENT, category=Category.AGENT_ERROR, message=message[:2000])
