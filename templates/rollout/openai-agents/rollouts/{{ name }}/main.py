"""An agent of the OpenAI Agents SDK that multiplies with a tool. Its model is the one the rollout was given."""

from __future__ import annotations

import os
import re
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from agents.models.chatcmpl_converter import Converter
from openai import AsyncOpenAI

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
    create_rollout_server,
)

ANSWER = re.compile(r"####\s*(-?[\d,]*\.?\d+)")


@function_tool
def multiply(a: float, b: float) -> float:
    """The product of two numbers."""
    return round(a * b, 4)


class MultiplyWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """One run of the SDK's own loop. Tracing is off: it would send conversations to a service."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        system = "\n".join(str(m["content"]) for m in ctx.prompt if m["role"] == "system")
        asked = [m for m in ctx.prompt if m["role"] != "system"]
        rollout = ctx.rollout
        key = rollout.api_key or "none-needed"
        async with AsyncOpenAI(base_url=rollout.chat_completions_url, api_key=key, max_retries=4) as client:
            agent = Agent(
                name="multiply",
                instructions=system or None,
                tools=[multiply],
                model=OpenAIChatCompletionsModel("openai/osmosis-rollout", client),
                model_settings=ModelSettings(max_tokens=4096),
            )
            config = RunConfig(tracing_disabled=True)
            result = await Runner.run(agent, input=asked, max_turns=8, run_config=config)
        opening = [{"role": "system", "content": system}] if system else []
        return [*opening, *(dict(m) for m in Converter.items_to_messages(result.to_input_list()))]


class MultiplyGrader(Grader):
    """1.0 when the number after the last `####` is within 0.01 of the ground truth, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is None:
            raise ValueError("the row has no ground_truth to compare with")
        said = [str(m.get("content") or "") for m in ctx.sample.messages if m.get("role") == "assistant"]
        found = ANSWER.findall(said[-1]) if said else []
        right = bool(found) and abs(float(found[-1].replace(",", "")) - float(ctx.label)) <= 0.01
        ctx.set_reward(1.0 if right else 0.0)


backend = LocalBackend(MultiplyWorkflow, AgentWorkflowConfig(name="openai-agents"), MultiplyGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
