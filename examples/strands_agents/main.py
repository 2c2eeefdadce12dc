"""Strands in a workflow. The model is the rollout's; the agent's conversation becomes the sample."""

import re

from strands import tool

from osmosis import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext, LocalBackend
from osmosis.sdk.integrations.strands import OsmosisRolloutModel, OsmosisStrandsAgent


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return round(a * b, 4)


MODEL = OsmosisRolloutModel(params={"temperature": 1.0, "max_tokens": 4096})


class Multiply(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        system = "\n".join(m["content"] for m in ctx.prompt if m["role"] == "system")
        question = "\n".join(m["content"] for m in ctx.prompt if m["role"] == "user")
        agent = OsmosisStrandsAgent(model=MODEL, tools=[multiply], system_prompt=system or None)
        await agent.invoke_async(question)


class MultiplyGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        found = re.findall(r"####\s*(-?\d+(?:\.\d+)?)", str(ctx.sample.messages[-1].get("content") or ""))
        ctx.set_reward(1.0 if found and abs(float(found[-1]) - float(ctx.label)) < 1e-2 else 0.0)


backend = LocalBackend(Multiply, AgentWorkflowConfig(name="multiply"), MultiplyGrader)
