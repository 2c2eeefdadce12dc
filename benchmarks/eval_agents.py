"""The two agents and the score function that the throughput benchmark runs."""

from __future__ import annotations

import json

from eval_tools import TOOLS

from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult


class Single(RolloutAgentLoop):
    """One call."""

    name = "single"

    def get_tools(self, request):
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)


class Tool(RolloutAgentLoop):
    """Two calls with a tool between."""

    name = "tool"

    def get_tools(self, request):
        return TOOLS

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            answer = await ctx.chat(messages)
            messages.append(answer.message)
            if not answer.has_tool_calls:
                break
            for call in answer.tool_calls:
                given = json.loads(call["function"]["arguments"])
                ctx.record_tool_call()
                content = str(given["a"] + given["b"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return ctx.complete(messages)


single = Single()
tool = Tool()


def exact(solution_str: str, ground_truth: str, extra_info: dict | None = None) -> float:
    return 1.0 if solution_str.rpartition("#### ")[2] == ground_truth else 0.0
