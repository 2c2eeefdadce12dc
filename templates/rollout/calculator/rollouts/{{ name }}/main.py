"""A calculator: an agent loop that offers four tools and scores its own last answer."""

from __future__ import annotations

import os

from rewards import answer_matches
from tools import TOOLS

from osmosis import RolloutAgentLoop, RolloutContext, RolloutResult, create_app, run_tool_calls, tool_schemas


class CalculatorLoop(RolloutAgentLoop):
    """Asks the model, runs the tools it calls side by side, until it answers or a limit is reached."""

    name = "calculator"

    def get_tools(self, request):
        return tool_schemas(TOOLS)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        request = ctx.request
        messages = list(request.messages)
        finish_reason, spent = "max_turns", 0
        for _ in range(request.max_turns):
            answer = await ctx.chat(messages, **request.completion_params)
            messages.append(answer.message)
            spent += answer.usage.get("completion_tokens", 0)
            if not answer.has_tool_calls:
                finish_reason = answer.finish_reason
                break
            if spent >= request.max_tokens_total:
                finish_reason = "max_tokens"
                break
            messages += await run_tool_calls(answer.tool_calls, TOOLS, timeout_s=10.0, ctx=ctx)
        ctx.log_event("rollout_complete", finish_reason=finish_reason, turns=len(messages))
        return ctx.complete(messages, finish_reason=finish_reason, reward=self.reward(ctx, messages))

    def reward(self, ctx: RolloutContext, messages) -> float | None:
        """None without a ground truth: then the run's own score functions decide."""
        truth = ctx.request.metadata.get("ground_truth")
        said = [str(m.get("content") or "") for m in messages if m.get("role") == "assistant"]
        if truth is None:
            return None
        return answer_matches(said[-1] if said else "", str(truth), {})


agent_loop = CalculatorLoop()
app = create_app(agent_loop)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
