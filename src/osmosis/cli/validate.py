"""`osmosis validate`: check an agent without running it. Exit 0 when it may be served, 1 when not."""

from __future__ import annotations

import asyncio
import inspect
from typing import Annotated, Any

import typer

from osmosis.base.json_types import JsonObject
from osmosis.engine.agent import load_agent
from osmosis.engine.in_process import plain_tools
from osmosis.serve.server.validator import ValidationResult, probe_request, validate_agent_loop

from .agent_ref import AgentRef, find_agent, opened
from .context import AppContext, current
from .drawing import Canvas, Line
from .results import DetailResult, clean


def validate(
    name: Annotated[str | None, typer.Argument(help="A rollout of the workspace, or module:attribute.")] = None,
    module: Annotated[
        str | None, typer.Option("--module", "-m", "--agent", help="The agent: module:attribute.")
    ] = None,
    mcp: Annotated[str | None, typer.Option("--mcp", help="An MCP server: its folder or URL.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show tools and warnings.")] = False,
) -> DetailResult:
    """Check an agent without running it.

    Example:

        osmosis validate -m server:agent_loop
        osmosis validate multiply --verbose
    """
    ctx = current()
    ref = find_agent(ctx, name, module, mcp)
    data, result = asyncio.run(_checked(ctx, ref))
    return DetailResult(
        data,
        exit_code=0 if data["valid"] else 1,
        human=lambda console: _draw(console, data, result, verbose=verbose),
    )


async def _checked(ctx: AppContext, ref: AgentRef) -> tuple[dict[str, object], ValidationResult | None]:
    agent = None if ref.module is None else load_agent(ref.module, ref.base_dir)
    async with opened(ref, agent.loop if agent is not None else None, ctx.environ) as loop:
        if loop is not None:
            return _loop(ref, loop)
    assert agent is not None
    assert agent.backend is not None
    return _workflow(ref, agent.backend), None


def _loop(ref: AgentRef, loop: Any) -> tuple[JsonObject, ValidationResult]:
    request = probe_request()
    result = validate_agent_loop(loop, request=request)
    issues = [
        {"severity": severity, "code": one.code, "field": one.field, "message": one.message}
        for severity, found in (("error", result.errors), ("warning", result.warnings))
        for one in found
    ]
    tools = plain_tools(loop.get_tools(request)) if result.valid else None
    data = {
        "agent": ref.label,
        "kind": "agent loop",
        "name": result.agent_name,
        "valid": result.valid,
        "tool_count": result.tool_count,
        "tools": [tool.get("function", {}).get("name") for tool in tools or []],
        "issues": issues,
    }
    return data, result


def _workflow(ref: AgentRef, backend: Any) -> dict[str, object]:
    """A backend refuses classes that cannot be used when it is made; what is left is whether they are coroutines."""
    issues = []
    checks = [(backend.workflow, "run", "WORKFLOW_RUN_NOT_ASYNC")]
    if backend.grader is None:
        issues.append(_issue("warning", "NO_GRADER", "grader", "no grader: rollouts get no reward"))
    else:
        checks.append((backend.grader, "grade", "GRADER_GRADE_NOT_ASYNC"))
    for cls, method, code in checks:
        if not inspect.iscoroutinefunction(getattr(cls, method)):
            where = f"{cls.__name__}.{method}"
            issues.append(_issue("error", code, where, f"is not a coroutine function: write `async def {method}`"))
    return {
        "agent": ref.label,
        "kind": "workflow and grader" if backend.grader is not None else "workflow",
        "name": backend.workflow.__name__,
        "grader": backend.grader.__name__ if backend.grader is not None else None,
        "valid": not any(issue["severity"] == "error" for issue in issues),
        "max_concurrent": backend.max_concurrent,
        "issues": issues,
    }


def _issue(severity: str, code: str, where: str, message: str) -> dict[str, object]:
    return {"severity": severity, "code": code, "field": where, "message": message}


def _draw(console: Canvas, data: JsonObject, result: ValidationResult | None, *, verbose: bool) -> None:
    name = data["name"] or data["agent"]
    tools = f", {data['tool_count']} tool(s)" if result is not None else ""
    word, style = ("is valid", "green") if data["valid"] else ("is not valid", "red")
    console.print(Line(clean(f"{data['kind']} {name} {word}{tools}"), style=style))
    if verbose and data.get("tools"):
        console.print(Line(f"  tools: {', '.join(map(clean, data['tools']))}", style="dim"))
    for issue in data["issues"]:
        if issue["severity"] == "error" or verbose or not data["valid"]:
            where = f"{issue['field']}: " if issue["field"] else ""
            colour = "red" if issue["severity"] == "error" else "yellow"
            console.print(Line(f"  [{issue['code']}] {clean(where + issue['message'])}", style=colour))
    warnings = sum(issue["severity"] == "warning" for issue in data["issues"])
    if warnings and data["valid"] and not verbose:
        console.print(Line(f"  {warnings} warning(s): show them with --verbose", style="dim"))
