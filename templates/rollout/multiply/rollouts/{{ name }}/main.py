"""Multiply two numbers: an agent with one tool, and a grader that compares its answer with the ground truth."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import uvicorn
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
)

MAX_TURNS = 8
TOLERANCE = 1e-2
ANSWER = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+(?:[eE][+-]?\d+)?)")

MULTIPLY = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "The product of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


def multiply(a: float, b: float) -> float:
    """The product, to four decimals."""
    return round(a * b, 4)


def number(value: Any) -> float:
    """An argument as a number; models also write `"1/4"` or `"2 * 10**3"`."""
    return float(simple_eval(value) if isinstance(value, str) else value)


def run_tool(call: dict[str, Any]) -> str:
    """The result of one tool call as text; a wrong call is answered, so that the model can correct itself."""
    function = call["function"]
    if function["name"] != "multiply":
        return f"Error: there is no tool {function['name']}"
    try:
        arguments = json.loads(function["arguments"] or "{}")
        return str(multiply(number(arguments["a"]), number(arguments["b"])))
    except (InvalidExpression, ArithmeticError, SyntaxError, ValueError, TypeError, KeyError) as error:
        return f"Error: multiply needs the numbers a and b ({error!r})"


class MultiplyWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the model, runs the tools it calls, until it answers without calling one."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            for _ in range(MAX_TURNS):
                answer = await chat.complete(messages, tools=[MULTIPLY])
                messages.append(answer.message)
                if not answer.tool_calls:
                    break
                for call in answer.tool_calls:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": run_tool(call)})
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
        number = number_in(str(said[-1] or "")) if said else None
        right = number is not None and abs(number - float(ctx.label)) <= TOLERANCE
        ctx.set_reward(1.0 if right else 0.0)


config = AgentWorkflowConfig(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=64))
backend = LocalBackend(MultiplyWorkflow, config, MultiplyGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
