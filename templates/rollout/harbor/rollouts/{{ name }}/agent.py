"""The workflow, which runs inside of the sandbox. Nothing else of this folder is imported there."""

import re
from pathlib import Path

from osmosis import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, AgentWorkflowOutput, run_tool_calls, tool


@tool
async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return round(a * b, 4)


class Config(AgentWorkflowConfig):
    max_turns: int = 6
    answer_file: str = "answer.txt"


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
        found = re.findall(r"####\s*(-?\d+(?:\.\d+)?)", str(messages[-1].get("content") or ""))
        # The working directory is the task's: what is left here is what the verifier looks at.
        Path(self.config.answer_file).write_text(found[-1] if found else "")
        return AgentWorkflowOutput(messages=messages, metrics={"turns": turns})
