"""An agent to fill in: one model call, and a grader that looks for the expected words in the answer."""

from __future__ import annotations

import os
from typing import Any

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
    create_rollout_server,
)


class Workflow(AgentWorkflow[AgentWorkflowConfig]):
    """Gets the row's opening messages as `ctx.prompt`, returns the whole conversation."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            answer = await chat.complete(messages)
        return [*messages, answer.message]


class ContainsGrader(Grader):
    """1.0 when the last answer contains the row's ground truth, whatever the case; else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is None:
            raise ValueError("the row has no ground_truth to compare with")
        said = [str(m.get("content") or "") for m in ctx.sample.messages if m.get("role") == "assistant"]
        ctx.set_reward(1.0 if said and ctx.label.lower() in said[-1].lower() else 0.0)


backend = LocalBackend(Workflow, AgentWorkflowConfig(name="workflow"), ContainsGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
