"""A calculator agent: asks the model, runs its tool calls in parallel, stops when it answers.

`osmosis serve -m server:agent_loop --local` serves it to a trainer; `osmosis test` and `osmosis eval -m` run it here.
"""

from rewards import compute_reward
from tools import TOOLS

from osmosis import RolloutAgentLoop, RolloutContext, RolloutResult, run_tool_calls, tool_schemas


class CalculatorAgentLoop(RolloutAgentLoop):
    name = "calculator"

    def get_tools(self, request):
        return tool_schemas(TOOLS)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        finish_reason = "max_turns"
        for _ in range(ctx.request.max_turns):
            answer = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(answer.message)
            ctx.log_event("answer", calls=len(answer.tool_calls))
            if not answer.has_tool_calls:
                finish_reason = answer.finish_reason
                break
            messages.extend(await run_tool_calls(answer.tool_calls, TOOLS, timeout_s=10, ctx=ctx))
        truth = ctx.request.metadata.get("ground_truth")
        reward = compute_reward(messages[-1].get("content") or "", truth) if truth else None
        return ctx.complete(messages, finish_reason=finish_reason, reward=reward)


agent_loop = CalculatorAgentLoop()
