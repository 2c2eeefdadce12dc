import inspect
import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from osmosis.errors import OsmosisError
from osmosis.records.protocol.v02 import RolloutRequest
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.classify import describe
from osmosis.sdk.types import AgentLoopNotFoundError

FUNCTION_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}\Z")


@dataclass
class ValidationIssue:
    code: str  # Stable word, e.g. `MISSING_NAME`.
    message: str
    field: str | None = None
    details: dict[str, Any] | None = None

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"[{self.code}] {where}{self.message}"


class AgentLoopValidationError(OsmosisError):
    code = "VALIDATION"

    def __init__(self, message: str, errors: list[ValidationIssue]) -> None:
        issues = [{"key": error.field or error.code, "message": error.message, "code": error.code} for error in errors]
        super().__init__(message, issues=issues)
        self.errors = errors


@dataclass
class ValidationResult:
    valid: bool
    errors: list[ValidationIssue] = field(default_factory=list)
    warnings: list[ValidationIssue] = field(default_factory=list)
    agent_name: str | None = None
    tool_count: int = 0

    def __bool__(self) -> bool:
        return self.valid

    def raise_if_invalid(self) -> None:
        if self.valid:
            return
        listed = "; ".join(str(error) for error in self.errors)
        name = self.agent_name or "the agent loop"
        raise AgentLoopValidationError(f"{name} has {len(self.errors)} error(s): {listed}", self.errors)


def validate_agent_loop(loop: Any, *, request: RolloutRequest | None = None) -> ValidationResult:
    check = _Check()
    check.name(loop)
    check.run(loop)
    tools = check.tools(loop, request or probe_request())
    return ValidationResult(
        valid=not check.errors,
        errors=check.errors,
        warnings=check.warnings,
        agent_name=check.agent_name,
        tool_count=len(tools),
    )


def probe_request() -> RolloutRequest:
    return RolloutRequest(
        rollout_id="validation-test-rollout",
        server_url="http://localhost:8080",
        messages=[{"role": "user", "content": "validation"}],
        completion_params={},
        metadata={"_validation": True},
    )


class _Check:
    def __init__(self) -> None:
        self.errors: list[ValidationIssue] = []
        self.warnings: list[ValidationIssue] = []
        self.agent_name: str | None = None

    def error(self, code: str, message: str, where: str | None = None, **details: Any) -> None:
        self.errors.append(ValidationIssue(code, message, where, details or None))

    def warning(self, code: str, message: str, where: str | None = None) -> None:
        self.warnings.append(ValidationIssue(code, message, where))

    def name(self, loop: Any) -> None:
        name = getattr(loop, "name", None)
        if name is None:
            self.error("MISSING_NAME", "the agent loop has no name: set the class attribute `name`", "name")
        elif not isinstance(name, str):
            self.error("INVALID_NAME_TYPE", f"the name is {type(name).__name__}, not str", "name")
        elif not name.strip():
            self.error("EMPTY_NAME", "the name is empty", "name")
        else:
            self.agent_name = name

    def run(self, loop: Any) -> None:
        run = getattr(loop, "run", None)
        if run is None:
            self.error("MISSING_RUN_METHOD", "`run` is missing: define `async def run(self, ctx)`", "run")
        elif not callable(run):
            self.error("RUN_NOT_CALLABLE", f"`run` is {type(run).__name__}, not a method", "run")
        elif not inspect.iscoroutinefunction(run):
            self.error("RUN_NOT_ASYNC", "`run` is not a coroutine function: write `async def run`", "run")

    def tools(self, loop: Any, request: RolloutRequest) -> list[Any]:
        try:
            tools = loop.get_tools(request)
        except Exception as exc:  # noqa: BLE001 - user code: what it raises is the finding
            self.error(
                "GET_TOOLS_EXCEPTION",
                f"get_tools raised {describe(exc)}",
                "get_tools",
                exception_type=type(exc).__name__,
                exception_message=str(exc),
            )
            return []
        if inspect.iscoroutine(tools):
            tools.close()
        if tools is None:
            self.error("GET_TOOLS_RETURNS_NONE", "get_tools returned None: return [] for no tools", "get_tools")
            return []
        if not isinstance(tools, list):
            self.error("GET_TOOLS_INVALID_TYPE", f"get_tools returned {type(tools).__name__}, not a list", "get_tools")
            return []
        for index, tool in enumerate(tools):
            self.tool(tool, f"tools[{index}]")
        return tools

    def tool(self, tool: Any, where: str) -> None:
        if isinstance(tool, BaseModel):
            tool = tool.model_dump()
        if not isinstance(tool, dict):
            self.error("INVALID_TOOL_TYPE", f"is {type(tool).__name__}, not a tool schema or a dict", where)
            return
        kind = tool.get("type")
        if not kind:
            self.error("MISSING_TOOL_TYPE", "has no type: set it to 'function'", f"{where}.type")
        elif kind != "function":
            self.warning("UNKNOWN_TOOL_TYPE", f"has the type {kind!r}; models know 'function'", f"{where}.type")
        function = tool.get("function")
        if function is None:
            self.error("MISSING_FUNCTION", "has no function", f"{where}.function")
        elif not isinstance(function, dict):
            self.error("INVALID_FUNCTION_TYPE", f"is {type(function).__name__}, not an object", f"{where}.function")
        else:
            self.function(function, f"{where}.function")

    def function(self, function: dict[str, Any], where: str) -> None:
        name = function.get("name")
        if not name:
            self.error("MISSING_FUNCTION_NAME", "has no name", f"{where}.name")
        elif not isinstance(name, str) or not FUNCTION_NAME.match(name):
            self.error(
                "INVALID_FUNCTION_NAME",
                f"{name!r} is not a valid name: use 1 to 64 letters, digits, _ and -",
                f"{where}.name",
            )
        if not function.get("description"):
            self.warning(
                "MISSING_FUNCTION_DESCRIPTION",
                "has no description; models choose tools by their description",
                f"{where}.description",
            )
        parameters = function.get("parameters")
        if parameters is None:
            return
        if not isinstance(parameters, dict):
            self.error(
                "INVALID_PARAMETERS_TYPE", f"is {type(parameters).__name__}, not an object", f"{where}.parameters"
            )
        elif parameters.get("type") != "object":
            kind = parameters.get("type")
            self.warning(
                "PARAMETERS_TYPE_NOT_OBJECT", f"has the type {kind!r}; models expect 'object'", f"{where}.parameters"
            )


class AgentLoopRegistry:
    def __init__(self) -> None:
        self._loops: dict[str, RolloutAgentLoop] = {}

    def register(self, loop: RolloutAgentLoop) -> None:
        if loop.name in self._loops:
            raise ValueError(f"an agent loop named {loop.name!r} is already registered")
        self._loops[loop.name] = loop

    def unregister(self, name: str) -> bool:
        return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        return self._loops.get(name)

    def list_names(self) -> list[str]:
        return list(self._loops)

    def clear(self) -> None:
        self._loops.clear()


_registry = AgentLoopRegistry()
register_agent_loop = _registry.register
unregister_agent_loop = _registry.unregister
list_agent_loops = _registry.list_names


def get_agent_loop(name: str) -> RolloutAgentLoop:
    loop = _registry.get(name)
    if loop is None:
        raise AgentLoopNotFoundError(name, list_agent_loops())
    return loop
