"""The OpenAI Agents SDK in a workflow. The model is the rollout's; the session's conversation becomes the sample."""

import re

from agents import ModelSettings, Runner, function_tool

from osmosis import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext, LocalBackend
from osmosis.sdk.integrations.openai_agents import OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel


@function_tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return round(a * b, 4)


MODEL = OsmosisRolloutModel()


class Multiply(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        system = "\n".join(m["content"] for m in ctx.prompt if m["role"] == "system")
        question = "\n".join(m["content"] for m in ctx.prompt if m["role"] == "user")
        agent = OsmosisAgent(
            name="multiply",
            instructions=system or None,
            tools=[multiply],
            model=MODEL,
            model_settings=ModelSettings(temperature=1.0, max_tokens=4096),
        )
        await Runner.run(agent, input=question, session=OsmosisMemorySession(), max_turns=8)


class MultiplyGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        found = re.findall(r"####\s*(-?\d+(?:\.\d+)?)", str(ctx.sample.messages[-1].get("content") or ""))
        ctx.set_reward(1.0 if found and abs(float(found[-1]) - float(ctx.label)) < 1e-2 else 0.0)


backend = LocalBackend(Multiply, AgentWorkflowConfig(name="multiply"), MultiplyGrader)
