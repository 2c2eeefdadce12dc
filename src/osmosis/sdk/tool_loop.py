"""A ready agent loop: the model, a set of tools, and turns until the model stops asking for them.

Good for evaluating tools (MCP servers, plain functions) without writing an agent. It has no memory beyond the
conversation and no prompt of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from osmosis.records.loop_request import RolloutRequest
from osmosis.records.rollout import Message
from osmosis.records.tool_schema import OpenAIFunctionToolSchema

from .agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from .tools import FunctionTool, run_tool_calls

CallTools = Callable[[Sequence[Mapping[str, Any]], RolloutContext], Awaitable[list[Message]]]
"""Runs an assistant message's tool calls: one `tool` message each, in order."""


class ToolLoop(RolloutAgentLoop):
    """`ToolLoop([add, multiply])`, with functions made by `@tool`.

    Ends with the model's finish reason, `max_turns`, or `max_tokens` when `max_tokens_total` is used up.
    """

    name = "tools"

    def __init__(
        self,
        tools: Iterable[FunctionTool[..., Any]] = (),
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        schemas: Iterable[OpenAIFunctionToolSchema] | None = None,
        call_tools: CallTools | None = None,
    ) -> None:
        self.name = name or type(self).name
        self._tools = list(tools)
        self._timeout_s = timeout_s
        self._schemas = list(schemas) if schemas is not None else [one.schema for one in self._tools]
        self._call_tools = call_tools or self._call_functions

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        return list(self._schemas)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        used = 0
        for _ in range(ctx.request.max_turns):
            answer = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(answer.message)
            if not answer.has_tool_calls:
                return ctx.complete(messages, finish_reason=answer.finish_reason)
            used += answer.usage.get("completion_tokens", 0)
            if used >= ctx.request.max_tokens_total:
                return ctx.complete(messages, finish_reason="max_tokens")
            messages.extend(await self._call_tools(answer.tool_calls, ctx))
        return ctx.complete(messages, finish_reason="max_turns")

    async def _call_functions(self, calls: Sequence[Mapping[str, object]], ctx: RolloutContext) -> list[Message]:
        return await run_tool_calls(calls, self._tools, timeout_s=self._timeout_s, ctx=ctx)
