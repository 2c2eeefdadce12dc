import asyncio
import inspect
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.agents import AgentRef, find_agent, opened
from osmosis.cli.core import completion
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import print_text
from osmosis.cli.core.results import DetailResult, Result, clean
from osmosis.cli.eval.flags import Mcp, Module
from osmosis.compat.validator import ValidationResult, probe_request, validate_agent_loop
from osmosis.engine.agent import plain_tools
from osmosis.engine.load_agent import load_agent
from osmosis.records.run.rows import FORMATS
from osmosis.serve.client.remote import started


def check(
    target: Annotated[
        str | None,
        Argument(
            metavar="[AGENT|CONFIG|DATASET|RUBRICS]",
            help="A rollout, module:attribute, a config, a data file or a rubric file [default: all configs]",
            autocompletion=completion.rollouts,
        ),
    ] = None,
    module: Module = None,
    mcp: Mcp = None,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Also show tools and warnings.")] = False,
) -> Result:
    """Check an agent, a config, a dataset or a rubric file; without a name, all configs of the workspace.

    Example:
        osmosis check multiply
        osmosis check configs/eval/multiply.toml
        osmosis check data/multiply.jsonl
        osmosis check -m server:agent_loop --verbose
    """
    path = current().path(target) if target else None
    if not (module or mcp) and (target is None or target.endswith(".toml")):
        from osmosis.cli.workspace.config import check as check_configs  # brings what edits TOML

        return check_configs([target] if target else None)
    if path is not None and path.suffix in (".yaml", ".yml"):
        from osmosis.cli.eval.rubric import preview  # brings the judges

        return preview(str(target))
    if path is not None and path.suffix.lstrip(".").lower() in FORMATS:
        from osmosis.cli.dataset import validate as check_dataset  # brings the client of a platform

        return check_dataset(str(target))
    ctx = current()
    data, result = asyncio.run(_checked(ctx, find_agent(ctx, target or None, module, mcp)))
    return DetailResult(
        data, exit_code=0 if data["valid"] else 1, human=lambda console: _draw(console, data, result, verbose=verbose)
    )


async def _checked(ctx: AppContext, ref: AgentRef) -> tuple[dict[str, object], ValidationResult | None]:
    if ref.python is not None:
        async with started(ref.python, ref.base_dir / str(ref.module), ctx.environ, log=ctx.output.say):
            pass
        return {"agent": ref.label, "kind": "rollout server", "name": ref.label, "valid": True, "issues": []}, None
    agent = None if ref.module is None else load_agent(ref.module, ref.base_dir)
    async with opened(ref, agent.loop if agent is not None else None, ctx.environ) as loop:
        if loop is not None:
            request = probe_request()
            result = validate_agent_loop(loop, request=request)
            issues = [
                {"severity": severity, "code": issue.code, "field": issue.field, "message": issue.message}
                for severity, severity_issues in (("error", result.errors), ("warning", result.warnings))
                for issue in severity_issues
            ]
            tools = plain_tools(loop.get_tools(request)) if result.valid else None
            data: JsonObject = {
                "agent": ref.label,
                "kind": "agent loop",
                "name": result.agent_name,
                "valid": result.valid,
                "tool_count": result.tool_count,
                "tools": [tool.get("function", {}).get("name") for tool in tools or []],
                "issues": issues,
            }
            return data, result
    assert agent is not None
    assert agent.backend is not None
    return _workflow(ref, agent.backend), None


def _workflow(ref: AgentRef, backend: Any) -> dict[str, object]:
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


def _draw(console: Console, data: JsonObject, result: ValidationResult | None, *, verbose: bool) -> None:
    name = data["name"] or data["agent"]
    tools = f", {data['tool_count']} tool(s)" if result is not None else ""
    word, style = ("is valid", "green") if data["valid"] else ("is not valid", "red")
    print_text(console, f"{data['kind']} {name} {word}{tools}", style)
    if verbose and data.get("tools"):
        print_text(console, f"  tools: {', '.join(map(clean, data['tools']))}", "dim")
    for issue in data["issues"]:
        if issue["severity"] == "error" or verbose or not data["valid"]:
            where = f"{issue['field']}: " if issue["field"] else ""
            colour = "red" if issue["severity"] == "error" else "yellow"
            print_text(console, f"  [{issue['code']}] {clean(where + issue['message'])}", colour)
    warnings = sum(issue["severity"] == "warning" for issue in data["issues"])
    if warnings and data["valid"] and not verbose:
        print_text(console, f"  {warnings} warning(s): show them with --verbose", "dim")
