import asyncio
import dataclasses
import inspect
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from osmosis.base.jsonable import JsonObject, to_valid_text
from osmosis.records.protocol.v02 import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    RolloutRequest,
)
from osmosis.records.run.rollout import Message
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.types import ToolArgumentError, ToolExecutionError
from osmosis.sdk.user_code import DeadlineExceeded, contain, in_thread, is_async, run_user_code, tool_time_limit

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}\Z")
_ARG_LINE = re.compile(r"^(\s+)(\*{0,2}\w+)\s*(?:\([^)]*\))?:\s*(.*)\Z")
_SECTIONS = ("args:", "arguments:", "parameters:", "returns:", "raises:", "yields:", "examples:", "example:", "note:")


class _PlainSchema(GenerateJsonSchema):
    """A schema without generated titles: they repeat the name and cost prompt tokens."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


class FunctionTool(Generic[P, R]):
    """A function with its JSON Schema. Calling it calls the function; `invoke` takes a model's arguments."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        if not _NAME.match(self.name):
            raise TypeError(f"{self.name!r} is not a valid tool name: use 1 to 64 letters, digits, _ and -")
        summary, self._arguments_doc = _split_doc(inspect.getdoc(function) or "")
        self.description = description if description is not None else summary
        self.timeout_s = timeout_s
        self._model, self._parameter_names = self._arguments_model()
        schema = self._model.model_json_schema(by_alias=True, schema_generator=_PlainSchema)
        schema.pop("title", None)
        parameters = OpenAIFunctionParametersSchema.model_validate(schema)
        self.schema = OpenAIFunctionToolSchema(
            function=OpenAIFunctionSchema(name=self.name, description=self.description, parameters=parameters)
        )
        self.__doc__ = function.__doc__
        self.__name__ = self.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def invoke(self, arguments: Mapping[str, object]) -> Any:
        """Check `arguments` against the schema and call the function (a plain one in a thread).

        `ToolArgumentError` names each argument that does not fit; what the function raises passes through."""
        try:
            checked = self._model.model_validate(dict(arguments))
        except ValidationError as exc:
            wrong = "; ".join(
                f"{'.'.join(str(part) for part in issue['loc']) or 'arguments'}: {issue['msg']}"
                for issue in exc.errors()
            )
            raise ToolArgumentError(f"wrong arguments for {self.name}: {wrong}", tool_name=self.name) from exc
        keywords = {self._parameter_names[field]: getattr(checked, field) for field in checked.model_fields_set}
        if is_async(self.function):
            return await self.function(**keywords)  # type: ignore[call-arg,misc]  # checked when it was declared
        return await in_thread(self.function, **keywords)

    def _arguments_model(self) -> tuple[type[BaseModel], dict[str, str]]:
        hints = get_type_hints(self.function, include_extras=True)
        fields: JsonObject = {}
        names: dict[str, str] = {}
        extra: Literal["allow", "forbid"] = "forbid"
        for position, parameter in enumerate(inspect.signature(self.function).parameters.values()):
            if parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise TypeError(f"tool {self.name}: parameter {parameter.name!r} cannot be passed by name")
            # The field's own name is neutral, because a parameter may be called `json`, `copy` or `_x`.
            field = f"p{position}"
            names[field] = parameter.name
            annotation = hints.get(parameter.name, Any)
            described = self._arguments_doc.get(parameter.name)
            required = parameter.default is parameter.empty
            options: JsonObject = {"alias": parameter.name}
            extras = getattr(annotation, "__metadata__", ())
            if described and not any(getattr(extra, "description", None) for extra in extras):
                options["description"] = described
            fields[field] = (Annotated[annotation, Field(**options)], ... if required else parameter.default)
        return create_model(f"{self.name}_arguments", __config__=ConfigDict(extra=extra), **fields), names


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_s: float | None = None
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Make a typed function a tool: `@tool` or `@tool(name=..., description=..., timeout_s=...)`.

    The schema comes from the annotations and defaults, the descriptions from the docstring (its `Args:` section
    describes the parameters). `TypeError` for parameters that cannot be passed by name."""

    def wrap(wrapped: Callable[P, R]) -> FunctionTool[P, R]:
        return FunctionTool(wrapped, name=name, description=description, timeout_s=timeout_s)

    return wrap if function is None else wrap(function)


def tool_schemas(tools: Iterable[FunctionTool[..., Any]]) -> list[OpenAIFunctionToolSchema]:
    return [tool.schema for tool in tools]


async def run_tool_calls(
    tool_calls: Sequence[Mapping[str, object]],
    tools: Iterable[FunctionTool[..., Any]],
    *,
    timeout_s: float | None = None,
    ctx: RolloutContext | None = None,
) -> list[Message]:
    """Run an assistant message's tool calls in parallel; one `tool` message each, in the order of the calls.

    `timeout_s` bounds each call (a tool's own limit wins). Every error becomes that call's error result.
    `ctx` counts the calls in its metrics."""
    tool_by_name = {tool.name: tool for tool in tools}

    async def answer(call: Mapping[str, object]) -> Message:
        call_id, name, arguments = get_tool_call_info(call)
        called = tool_by_name.get(name)
        if called is None:
            offered = ", ".join(sorted(tool_by_name)) or "none"
            raise ToolExecutionError(f"there is no tool {name!r}; the tools are: {offered}")
        result = await _limited(called.invoke(arguments), called.timeout_s or timeout_s, name)
        return create_tool_result(call_id, serialize_tool_result(result))

    return await execute_tool_calls(tool_calls, answer, ctx=ctx)


def create_tool_result(tool_call_id: str, content: str) -> Message:
    return {"role": "tool", "content": to_valid_text(content), "tool_call_id": tool_call_id}


def create_tool_error_result(tool_call_id: str, error_message: str) -> Message:
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def serialize_tool_result(result: object) -> str:
    """Format a result: strings as they are, numbers plain, everything else JSON (`TypeError` when it cannot be)."""
    if isinstance(result, str):
        return result
    if isinstance(result, bool):
        return json.dumps(result)
    if isinstance(result, (int, float)):
        return str(result)
    if isinstance(result, BaseModel):
        return result.model_dump_json()
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return json.dumps(dataclasses.asdict(result), ensure_ascii=False)
    return json.dumps(result, ensure_ascii=False)


def parse_tool_arguments(arguments: str | Mapping[str, object]) -> JsonObject:
    """Parse a call's arguments; `ToolArgumentError` when they are not a JSON object. Blank text is `{}`."""
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str):
        raise ToolArgumentError(f"the arguments are {type(arguments).__name__}, not a JSON object")
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except json.JSONDecodeError as exc:
        raise ToolArgumentError(f"the arguments are not JSON: {exc}") from exc
    if not isinstance(parsed, dict):
        raise ToolArgumentError(f"the arguments are a JSON {type(parsed).__name__}, not an object")
    return parsed


def get_tool_call_info(tool_call: Mapping[str, Any]) -> tuple[str, str, JsonObject]:
    """Return (id, name, arguments) of a tool call; `ToolArgumentError` carries the id and name of the call."""
    call_id = tool_call.get("id") or "unknown"
    function = tool_call.get("function") or {}
    name = function.get("name") or ""
    try:
        return call_id, name, parse_tool_arguments(function.get("arguments") or {})
    except ToolArgumentError as exc:
        raise ToolArgumentError(exc.message, tool_call_id=call_id, tool_name=name) from exc


async def execute_tool_calls(
    tool_calls: Sequence[Mapping[str, object]],
    executor: Callable[[Any], Awaitable[Message]],
    *,
    timeout_s: float | None = None,
    ctx: RolloutContext | None = None,
) -> list[Message]:
    """Run `executor` on every call at once; return the results in the order of the calls.

    A call whose executor raises, or takes longer than `timeout_s`, yields an error result; the others keep theirs.
    `ctx` counts the calls in its metrics."""

    async def guarded(call: Mapping[str, Any]) -> Message:
        function = call.get("function") or {}
        started = time.monotonic()
        try:
            done: Message = await _limited(contain(executor(call)), timeout_s, function.get("name") or "")
            return done
        except Exception as exc:  # noqa: BLE001 - one tool: the model reads the error and continues
            text = exc.message if isinstance(exc, ToolExecutionError) else f"{type(exc).__name__}: {exc}"
            return create_tool_error_result(call.get("id") or "unknown", text)
        finally:
            if ctx is not None:
                ctx.record_tool_call(latency_ms=(time.monotonic() - started) * 1000)

    return list(await asyncio.gather(*(guarded(call) for call in tool_calls)))


async def _limited(work: Awaitable[object], timeout_s: float | None, name: str) -> Any:
    timeout_s = tool_time_limit.get() if timeout_s is None else timeout_s
    if timeout_s is None:
        return await work

    try:
        return await run_user_code(work, timeout_s, grace_s=1.0, name=name or "tool")
    except DeadlineExceeded as exc:
        raise ToolExecutionError(f"{name or 'the tool'} did not finish within {timeout_s:g} s", tool_name=name) from exc


def _split_doc(doc: str) -> tuple[str, dict[str, str]]:
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, indent, current = "", 0, ""
    for line in doc.splitlines():
        head = line.strip().lower()
        if head in _SECTIONS and not line.startswith(" "):
            section, indent = head, 0
            continue
        if not section:
            summary.append(line)
        elif section in ("args:", "arguments:", "parameters:") and line.strip():
            match = _ARG_LINE.match(line)
            if match and (not indent or len(match[1]) == indent):
                indent, current = len(match[1]), match[2].lstrip("*")
                arguments[current] = match[3].strip()
            elif current:
                arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    return "\n".join(summary).strip(), arguments


CallTools = Callable[[Sequence[Mapping[str, Any]], RolloutContext], Awaitable[list[Message]]]


class ToolLoop(RolloutAgentLoop):
    """An agent that calls tools: `ToolLoop([add, multiply])`, with functions made by `@tool`.

    Ends with the model's finish reason, `max_turns`, or `max_tokens` when `max_tokens_total` is used up."""

    name = "tools"

    def __init__(
        self,
        tools: Iterable[FunctionTool[..., Any]] = (),
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        schemas: Iterable[OpenAIFunctionToolSchema] | None = None,
        call_tools: CallTools | None = None,
    ) -> None:
        self.name = name or type(self).name
        self._tools = list(tools)
        self._schemas = list(schemas) if schemas is not None else [tool.schema for tool in self._tools]
        self._call_tools = call_tools or (
            lambda calls, ctx: run_tool_calls(calls, self._tools, timeout_s=timeout_s, ctx=ctx)
        )

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        return list(self._schemas)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        used = 0
        for _ in range(ctx.request.max_turns):
            answer = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(answer.message)
            if not answer.has_tool_calls:
                return ctx.complete(messages, finish_reason=answer.finish_reason)
            used += answer.usage.get("completion_tokens", 0)
            if used >= ctx.request.max_tokens_total:
                return ctx.complete(messages, finish_reason="max_tokens")
            messages.extend(await self._call_tools(answer.tool_calls, ctx))
        return ctx.complete(messages, finish_reason="max_turns")
