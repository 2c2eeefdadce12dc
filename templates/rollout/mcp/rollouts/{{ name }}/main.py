"""An agent that uses the tools of an MCP server, through MCP's own client, and a grader for its last number."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from fastmcp import Client
from fastmcp.exceptions import ToolError
from shop_tools import server

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
    create_rollout_server,
)

MAX_TURNS = 8
ANSWER = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+)")
# In this process here; a URL or a command works the same: Client("http://127.0.0.1:8080/mcp").
MCP_SERVER: Any = os.environ.get("MCP_URL") or server


def as_openai(tool: Any) -> dict[str, Any]:
    """An MCP tool in the form chat completions take."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


async def call(client: Client, wanted: dict[str, Any]) -> dict[str, Any]:
    """Run one tool call; what goes wrong is told to the model, so that it can correct itself."""
    function = wanted["function"]
    try:
        result = await client.call_tool(function["name"], json.loads(function["arguments"] or "{}"))
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None))
    except (ToolError, ValueError) as error:
        text = f"Error: {error}"
    return {"role": "tool", "tool_call_id": wanted["id"], "content": text}


class McpWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Offers whatever tools the server has; nothing about them is written here."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        messages = list(ctx.prompt)
        async with Client(MCP_SERVER) as client, ctx.chat() as chat:
            tools = [as_openai(tool) for tool in await client.list_tools()]
            for _ in range(MAX_TURNS):
                answer = await chat.complete(messages, tools=tools)
                messages.append(answer.message)
                if not answer.tool_calls:
                    break
                messages += [await call(client, wanted) for wanted in answer.tool_calls]
        return messages


class AmountGrader(Grader):
    """1.0 when the number after the last `####` is the ground truth to the cent, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is None:
            raise ValueError("the row has no ground_truth to compare with")
        said = [str(m.get("content") or "") for m in ctx.sample.messages if m.get("role") == "assistant"]
        found = ANSWER.findall(said[-1]) if said else []
        right = bool(found) and abs(float(found[-1].replace(",", "")) - float(ctx.label)) < 0.005
        ctx.set_reward(1.0 if right else 0.0)


backend = LocalBackend(McpWorkflow, AgentWorkflowConfig(name="mcp"), AmountGrader)
app = create_rollout_server(backend)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning")
