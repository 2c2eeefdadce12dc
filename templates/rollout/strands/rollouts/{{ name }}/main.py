"""An agent of the Strands SDK that multiplies with a tool. Its model is the one the rollout was given."""

from __future__ import annotations

import os
import re
from typing import Any

from strands import Agent, tool
from strands.models.openai import OpenAIModel

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


@tool
def multiply(a: float, b: float) -> float:
    """The product of two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return round(a * b, 4)


class MultiplyWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """One run of the SDK's own loop, without its console output."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        system = "\n".join(str(m["content"]) for m in ctx.prompt if m["role"] == "system")
        question = "\n".join(str(m["content"]) for m in ctx.prompt if m["role"] == "user")
        rollout = ctx.rollout
        model = OpenAIModel(
            client_args={"base_url": rollout.chat_completions_url, "api_key": rollout.api_key or "none-needed"},
            model_id="openai/osmosis-rollout",
        )
        agent = Agent(model=model, tools=[multiply], system_prompt=system or None, callback_handler=None)
        await agent.invoke_async(question)
        return [dict(m) for m in model.format_request_messages(agent.messages, system or None)]


def text_of(message: dict[str, Any]) -> str:
    """The text of a message whose content is text or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content)


class MultiplyGrader(Grader):
    """1.0 when the number after the last `####` is within 0.01 of the ground truth, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is None:
            raise ValueError("the row has no ground_truth to compare with")
        said = [text_of(m) for m in ctx.sample.messages if m.get("role") == "assistant"]
        found = ANSWER.findall(said[-1]) if said else []
        right = bool(found) and abs(float(found[-1].replace(",", "")) - float(ctx.label)) <= 0.01
        ctx.set_reward(1.0 if right else 0.0)


backend = LocalBackend(MultiplyWorkflow, AgentWorkflowConfig(name="strands"), MultiplyGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
