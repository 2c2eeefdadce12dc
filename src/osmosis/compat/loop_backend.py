"""Run a `RolloutAgentLoop` for `POST /rollout`: it asks the rollout's own URL for the model; its reward counts."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from osmosis.errors import ValidationError
from osmosis.records.protocol.messages import RolloutInit, RolloutState
from osmosis.records.protocol.v02 import LoopStatus, OpenAIFunctionToolSchema, RolloutMetrics, RolloutRequest
from osmosis.records.run.rollout import Message, Phase
from osmosis.sdk.agent_loop import CompletionsResult, RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.backend import ExecutionResult, cancelled_result, with_failure
from osmosis.sdk.chat import ChatClient
from osmosis.sdk.classify import agent_error, failure_of, wire_category
from osmosis.sdk.messages import Prompts
from osmosis.sdk.sandbox import opening_from, sandbox_while
from osmosis.sdk.types import RolloutSample
from osmosis.sdk.user_code import SelfCancelled, contain, run_user_code
from osmosis.serve.server.trace_files import TraceFolder

SLOW_TOOLS_S = 0.005
"""Seconds: a slower `get_tools` runs in a thread from then on, so that it does not block the others."""


class ToolAsker:
    def __init__(self, loop: RolloutAgentLoop) -> None:
        self._loop = loop
        self._in_thread = True

    async def ask(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        def call() -> tuple[list[OpenAIFunctionToolSchema], float]:
            started = time.perf_counter()
            return self._loop.get_tools(request), time.perf_counter() - started

        async def call_in_place() -> tuple[list[OpenAIFunctionToolSchema], float]:
            return await asyncio.to_thread(call) if self._in_thread else call()

        tools, duration_s = await contain(call_in_place())
        self._in_thread = duration_s > SLOW_TOOLS_S
        return tools


class UrlModel:
    def __init__(self, chat: ChatClient, tools: list[dict[str, Any]]) -> None:
        self._chat = chat
        self._tools = tools
        self._metrics = RolloutMetrics()

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult:
        started = time.monotonic()
        params = {key: value for key, value in kwargs.items() if value is not None and key not in ("model", "tools")}
        done = await self._chat.complete(messages, tools=self._tools or None, **params)
        took_ms = (time.monotonic() - started) * 1000
        usage = done.usage
        self._metrics = self._metrics.counting(usage.prompt_tokens, usage.completion_tokens, took_ms)
        return CompletionsResult.of(done)

    def get_metrics(self) -> RolloutMetrics:
        return self._metrics.model_copy()


class LoopBackend:
    def __init__(
        self, loop: RolloutAgentLoop, *, max_concurrent: int | None, traces: TraceFolder | None = None
    ) -> None:
        self.loop = loop
        self.max_concurrent = max_concurrent
        self._traces = traces
        self._tools = ToolAsker(loop)

    async def execute(
        self, init: RolloutInit, *, on_state: Callable[[RolloutState], None] | None = None
    ) -> ExecutionResult:
        request = request_of(init)
        url = init.chat_completions_url
        try:
            check_limits(request)
            tools = await self._tools.ask(request)
            key = init.llm_api_key or init.controller_api_key
            async with sandbox_while(opening_from(os.environ, url, key)), ChatClient(url, api_key=key) as chat:
                context = RolloutContext(request, tools, UrlModel(chat, tool_dicts(tools)), time.monotonic())
                context.prompts = Prompts(type(self.loop))
                trace_into(context, self._traces, (init.llm_api_key, init.controller_api_key))
                result = await run_user_code(
                    checked_run(self.loop, context), init.agent_timeout_sec, name=f"agent {init.rollout_id}"
                )
        except SelfCancelled:
            return cancelled_result(Phase.AGENT)
        except Exception as exc:  # noqa: BLE001 - one rollout: user code may raise anything
            failure = failure_of(exc, Phase.AGENT)
            return with_failure(ExecutionResult("failure"), failure, wire_category(failure, exc))
        metrics = result.metrics.model_dump() if result.metrics else {}
        sample = RolloutSample(messages=result.final_messages, label=init.label, metrics=metrics)
        if result.status == LoopStatus.ERROR.value:
            failure = agent_error(result.error_message or "the agent reported an error without a message")
            return with_failure(ExecutionResult("failure", sample=sample), failure, "agent_error")
        try:
            sample.reward = result.reward
        except ValueError as exc:
            failure = failure_of(exc, Phase.SCORE)
            return with_failure(ExecutionResult("failure", sample=sample), failure, wire_category(failure, exc))
        return ExecutionResult("success", sample=sample, graded=result.reward is not None)


def request_of(init: RolloutInit) -> RolloutRequest:
    extra = init.extra_fields or {}
    params = extra.get("completion_params")
    more = extra.get("metadata")
    metadata = {**(init.metadata or {}), **(more if isinstance(more, dict) else {})}
    if init.label is not None:
        metadata.setdefault("ground_truth", init.label)
    return RolloutRequest(
        rollout_id=init.rollout_id or "",
        server_url=init.chat_completions_url,
        messages=[dict(message) for message in init.initial_messages],
        completion_params=params if isinstance(params, dict) else {},
        metadata=metadata,
        **{key: extra[key] for key in ("max_turns", "max_tokens_total") if isinstance(extra.get(key), int)},
    )


def check_limits(request: RolloutRequest) -> None:
    for name, value in (("max_turns", request.max_turns), ("max_tokens_total", request.max_tokens_total)):
        if value < 1:
            raise ValidationError(f"{name} is {value}, so the model cannot be called even once", field=name)


def tool_dicts(tools: object) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise TypeError(f"get_tools returned {type(tools).__name__}, not a list")
    return [
        tool
        if isinstance(tool, dict)
        else OpenAIFunctionToolSchema.model_validate(tool, from_attributes=True).to_dict()
        for tool in tools
    ]


async def checked_run(loop: RolloutAgentLoop, context: RolloutContext) -> RolloutResult:
    result = await contain(loop.run(context))
    if not isinstance(result, RolloutResult):
        raise TypeError(
            f"{type(loop).__name__}.run returned {type(result).__name__}; return ctx.complete(...) or ctx.error(...)"
        )
    return result


def trace_into(context: RolloutContext, traces: TraceFolder | None, secrets: tuple[str | None, ...]) -> None:
    if traces is not None:
        context._debug_dir = traces.folder
        context._trace = traces.open(context.request.rollout_id, secrets)  # type: ignore[assignment]  # of another kind here
