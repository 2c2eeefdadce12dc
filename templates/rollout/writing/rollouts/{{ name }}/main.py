"""A writing task without one right answer: the agent writes a text, a judge scores it by a rubric."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
    create_rollout_server,
    evaluate_rubric_async,
)

RUBRIC = Path(__file__).with_name("rubric.md").read_text("utf-8")
# Who judges: `provider/model`, and an endpoint of your own where JUDGE_API_BASE is set in [env] of the config.
JUDGE_PROVIDER, _, JUDGE_MODEL = os.environ.get("JUDGE_MODEL", "offline/judge").partition("/")
JUDGE_API_BASE = os.environ.get("JUDGE_API_BASE")


class WritingWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """One draft; revise it here before returning."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            answer = await chat.complete(messages)
        return [*messages, answer.message]


class RubricGrader(Grader):
    """The judge's score between 0 and 1. A judge that fails is an error of this rollout, never a score."""

    async def grade(self, ctx: GraderContext) -> None:
        said = [str(m.get("content") or "") for m in ctx.sample.messages if m.get("role") == "assistant"]
        asked = [str(m.get("content") or "") for m in ctx.sample.messages if m.get("role") == "user"]
        if not said or not said[-1].strip():
            ctx.set_reward(0.0)
            return
        judge = {"provider": JUDGE_PROVIDER, "model": JUDGE_MODEL}
        if JUDGE_API_BASE:
            judge["api_base"] = JUDGE_API_BASE
        score = await evaluate_rubric_async(
            RUBRIC, said[-1], judge, ground_truth=ctx.label, original_input=asked[-1] if asked else None
        )
        ctx.set_reward(float(score))


backend = LocalBackend(WritingWorkflow, AgentWorkflowConfig(name="writing"), RubricGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
