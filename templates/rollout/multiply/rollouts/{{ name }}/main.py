"""Multiply two numbers: an agent with one tool, and a grader that compares its answer with the ground truth."""

from __future__ import annotations

import os
import re
from typing import Any

from simpleeval import InvalidExpression, simple_eval

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    LocalBackend,
    create_rollout_server,
    run_tool_calls,
    tool,
    tool_schemas,
)

MAX_TURNS = 8
TOLERANCE = 1e-2
ANSWER = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+(?:[eE][+-]?\d+)?)")


@tool
def multiply(a: float | str, b: float | str) -> str:
    """The product of two numbers, to four decimals.

    Args:
        a: A number, or an expression such as "1/4" or "2 * 10**3".
        b: The other one.
    """
    try:
        return str(round(number(a) * number(b), 4))
    except (InvalidExpression, ArithmeticError, SyntaxError, ValueError) as error:
        return f"Error: multiply needs the numbers a and b ({error!r})"  # so that the model can correct itself


TOOLS = [multiply]


def number(value: float | str) -> float:
    """An argument as a number; models also write `"1/4"` or `"2 * 10**3"`."""
    return float(simple_eval(value) if isinstance(value, str) else value)


class MultiplyWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the model, runs the tools it calls, until it answers without calling one."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            for _ in range(MAX_TURNS):
                answer = await chat.complete(messages, tools=tool_schemas(TOOLS))
                messages.append(answer.message)
                if not answer.tool_calls:
                    break
                messages += await run_tool_calls(answer.tool_calls, TOOLS)
        return messages


def number_in(text: str) -> float | None:
    """The number on the last `####` line: reasoning before it may quote the example of the prompt."""
    found = ANSWER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


class MultiplyGrader(Grader):
    """1.0 when the answer is within the tolerance of the label, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is None:
            raise ValueError("the row has no ground_truth to compare with")
        said = [m.get("content") for m in ctx.sample.messages if m.get("role") == "assistant"]
        found = number_in(str(said[-1] or "")) if said else None
        if found is None:
            ctx.set_reward(0.0, reason="no line that begins with ####")
            return
        right = abs(found - float(ctx.label)) <= TOLERANCE
        ctx.set_reward(1.0 if right else 0.0, reason=f"{found:.10g} {'is' if right else 'is not'} {ctx.label}")


config = AgentWorkflowConfig(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=64))
backend = LocalBackend(MultiplyWorkflow, config, MultiplyGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
