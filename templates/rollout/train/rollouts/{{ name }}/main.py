"""Add two numbers with a tool: an agent of two turns that a small model learns, and a grader that checks the sum."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    LocalBackend,
    create_rollout_server,
)

MAX_TURNS = 3
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def run_tool(call: dict[str, Any]) -> str:
    """The result of one tool call as text; a wrong call is answered, so that the model can correct itself."""
    try:
        given = json.loads(call["function"]["arguments"])
        return str(int(given["a"]) + int(given["b"]))
    except (ValueError, TypeError, KeyError):
        return "error"


class AddWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the model, runs the tool it calls, until it answers without calling one."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            for _ in range(MAX_TURNS):
                answer = await chat.complete(messages, tools=[ADD])
                messages.append(answer.message)
                if not answer.tool_calls:
                    break
                for call in answer.tool_calls:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": run_tool(call)})
        return messages


class AddGrader(Grader):
    """1.0 for the right sum after a call of the tool, else 0.0: guessing is not what the model should learn."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is None:
            raise ValueError("the row has no ground_truth to compare with")
        said = re.findall(r"-?\d+", str(ctx.sample.messages[-1].get("content") or ""))
        called = any(message.get("tool_calls") for message in ctx.sample.messages)
        ctx.set_reward(1.0 if called and said and said[-1] == ctx.label else 0.0)


config = AgentWorkflowConfig(name="add", concurrency=ConcurrencyConfig(max_concurrent=128))
backend = LocalBackend(AddWorkflow, config, AddGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
