"""One sentence of exactly eight words: a single answer, and a grader that counts."""

import os
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

TOLERANCE = 4


class Writer(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        async with ctx.chat() as chat:
            answer = await chat.complete(list(ctx.prompt))
        return [*ctx.prompt, answer.message]


class Counter(Grader):
    """1.0 for as many words as the label says, a quarter less for each word more or fewer."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is None:
            raise ValueError("the row has no ground_truth: how many words it takes")
        words = str(ctx.sample.messages[-1].get("content") or "").split()
        is_repetitive = len({word.lower() for word in words}) <= len(words) // 2
        ctx.set_reward(0.0 if is_repetitive else max(0.0, 1 - abs(len(words) - int(ctx.label)) / TOLERANCE))


config = AgentWorkflowConfig(name="eight", concurrency=ConcurrencyConfig(max_concurrent=128))
backend = LocalBackend(Writer, config, Counter)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
