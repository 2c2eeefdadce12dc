"""A workflow with a tool, its grader, and both as a rollout server.

Local: `osmosis eval -m main:backend -d data.jsonl --model offline/calculator`.
Served: `_OSMOSIS_ROLLOUT_PORT=8000 python main.py`, then `osmosis eval --server http://127.0.0.1:8000 ...`.
"""

import os
import re

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    LocalBackend,
    run_tool_calls,
    tool,
)


@tool
async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return round(a * b, 4)


class Config(AgentWorkflowConfig):
    """The workflow's own settings, typed."""

    max_turns: int = 6


class Multiply(AgentWorkflow[Config]):
    async def run(self, ctx: AgentWorkflowContext[Config]) -> AgentWorkflowOutput:
        messages = list(ctx.prompt)
        turns = 0
        async with ctx.chat() as chat:
            while turns < self.config.max_turns:
                turns += 1
                answer = await chat.complete(messages, tools=[multiply])
                messages.append(answer.message)
                if not answer.tool_calls:
                    break
                messages.extend(await run_tool_calls(answer.tool_calls, [multiply], timeout_s=10))
        return AgentWorkflowOutput(messages=messages, metrics={"turns": turns})


class MultiplyGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        text = str(ctx.sample.messages[-1].get("content") or "")
        found = re.findall(r"####\s*(-?\d+(?:\.\d+)?)", text)
        ctx.set_reward(1.0 if found and abs(float(found[-1]) - float(ctx.label)) < 1e-2 else 0.0)


backend = LocalBackend(
    Multiply, Config(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=64)), MultiplyGrader
)


if __name__ == "__main__":
    import uvicorn

    from osmosis import create_rollout_server

    port = int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000"))
    uvicorn.run(create_rollout_server(backend), host="127.0.0.1", port=port, log_level="warning")
