"""Functions as tools, tool calls in parallel, and the helpers of generation 0.2."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from osmosis.records.protocol.v02 import OpenAIFunctionParametersSchema, OpenAIFunctionToolSchema
from osmosis.sdk.agent_loop import RolloutContext
from osmosis.sdk.tools import (
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    parse_tool_arguments,
    run_tool_calls,
    serialize_tool_result,
    tool,
)
from osmosis.sdk.types import ToolArgumentError
from osmosis.testing.scripted import ScriptedLLM, call


class Point(BaseModel):
    x: float
    y: float = 0.5


@tool
async def search(
    query: str,
    limit: int = 5,
    mode: Literal["fast", "deep"] = "fast",
    tags: list[str] | None = None,
    near: Point | None = None,
    json: Annotated[dict[str, int], Field(description="Own words.")] = {},  # noqa: B006 - a default in a schema
) -> str:
    """Search the archive.

    Args:
        query: What to look for,
            in any language.
        json (dict): Ignored, the annotation has words.
    """
    return f"{query}/{limit}/{mode}/{tags}/{near}/{json}"


def test_schema_comes_from_the_function() -> None:
    schema = search.schema.to_dict()
    function = schema["function"]
    assert (schema["type"], function["name"], function["description"]) == ("function", "search", "Search the archive.")
    properties = function["parameters"]["properties"]
    assert function["parameters"]["required"] == ["query"]
    assert properties["query"] == {"type": "string", "description": "What to look for, in any language."}
    assert properties["limit"] == {"type": "integer", "default": 5}
    assert properties["mode"]["enum"] == ["fast", "deep"]
    assert {"items": {"type": "string"}, "type": "array"} in properties["tags"]["anyOf"]
    assert properties["tags"]["default"] is None
    assert properties["json"]["description"] == "Own words."
    assert "Point" in function["parameters"]["$defs"]
    assert "title" not in json.dumps(properties)


async def test_invoke_checks_and_converts() -> None:
    assert await search.invoke({"query": "a", "limit": "7", "near": {"x": 1}}) == "a/7/fast/None/x=1.0 y=0.5/{}"
    with pytest.raises(ToolArgumentError) as caught:
        await search.invoke({"limit": "many", "nope": 1})
    assert all(word in str(caught.value) for word in ("search", "query", "limit", "nope"))
    assert await search("direct") == "direct/5/fast/None/None/{}"


def test_functions_that_cannot_be_called_by_name_are_refused() -> None:
    with pytest.raises(TypeError, match="cannot be passed by name"):

        @tool
        async def positional(*args: int) -> None: ...

    with pytest.raises(TypeError, match="not a valid tool name"):
        tool(name="two words")(lambda: None)


@tool(timeout_s=0.05)
async def hang() -> None:
    """Never returns."""
    await asyncio.Event().wait()


@tool
def boom(x: int) -> None:
    """Fails, and is a plain function."""
    raise ValueError(f"bad {x} [/red]")


async def test_every_failure_is_one_error_result() -> None:
    calls = [
        call("search", '{"query": "q"}', "c1"),
        call("hang", "", "c2"),
        call("boom", '{"x": 3}', "c3"),
        call("missing", "{}", "c4"),
        call("search", '{"query": ', "c5"),
    ]
    results = await run_tool_calls(calls, [search, hang, boom])
    assert [one["tool_call_id"] for one in results] == ["c1", "c2", "c3", "c4", "c5"]
    assert results[0]["content"] == "q/5/fast/None/None/{}"
    assert results[1]["content"] == "Error: hang did not finish within 0.05 s"
    assert results[2]["content"] == "Error: ValueError: bad 3 [/red]"
    assert "boom, hang, search" in results[3]["content"]
    assert "not JSON" in results[4]["content"]


async def test_calls_run_at_once_and_are_counted() -> None:
    arrived: list[int] = []
    ready = asyncio.Event()

    @tool
    async def meet(n: int) -> int:
        """Waits for the other."""
        arrived.append(n)
        if len(arrived) == 2:
            ready.set()
        await asyncio.wait_for(ready.wait(), 5)
        return n

    context = RolloutContext(request=None, tools=[], llm=ScriptedLLM([]))  # type: ignore[arg-type]
    results = await run_tool_calls([call("meet", '{"n": 1}'), call("meet", '{"n": 2}')], [meet], ctx=context)
    assert [one["content"] for one in results] == ["1", "2"]
    assert context.complete([]).metrics.num_tool_calls == 2  # type: ignore[union-attr]


def test_helpers_of_02() -> None:
    assert create_tool_result("i", "c") == {"role": "tool", "content": "c", "tool_call_id": "i"}
    assert create_tool_error_result("i", "no")["content"] == "Error: no"
    assert [serialize_tool_result(v) for v in (True, 3, 2.5, "x", {"a": [1]})] == [
        "true",
        "3",
        "2.5",
        "x",
        '{"a": [1]}',
    ]
    with pytest.raises(TypeError):
        serialize_tool_result(object())
    assert parse_tool_arguments('{"a": 1}') == {"a": 1}
    assert get_tool_call_info({"function": {"name": "f", "arguments": {"a": 1}}}) == ("unknown", "f", {"a": 1})
    with pytest.raises(ToolArgumentError) as caught:
        get_tool_call_info(call("f", "[1]", "c9"))
    assert (caught.value.tool_call_id, caught.value.tool_name) == ("c9", "f")


async def test_execute_tool_calls_keeps_order_and_loses_nothing() -> None:
    async def executor(one: dict[str, Any]) -> dict[str, Any]:
        call_id, name, _ = get_tool_call_info(one)
        if name == "bad":
            raise RuntimeError("broken")
        await asyncio.sleep(0.01 if name == "slow" else 0)
        return create_tool_result(call_id, name)

    calls = [call("slow", "{}", "1"), call("bad", "{}", "2"), call("quick", "{}", "3")]
    contents = [one["content"] for one in await execute_tool_calls(calls, executor)]
    assert contents == ["slow", "Error: RuntimeError: broken", "quick"]
    assert await execute_tool_calls([], executor) == []


def test_wire_schemas_keep_all_of_json_schema() -> None:
    raw = {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "properties": {
                    "a": {"type": "array", "items": {"type": "integer"}, "default": None},
                    "b": {"enum": [1, 2]},
                    "c": True,
                    "d": {"type": ["string", "null"]},
                },
                "additionalProperties": False,
                "$defs": {"X": {"type": "object"}},
            },
        },
    }
    kept = OpenAIFunctionToolSchema.model_validate(raw).to_dict()["function"]["parameters"]
    assert kept["properties"]["a"] == {"type": "array", "items": {"type": "integer"}, "default": None}
    assert kept["properties"]["b"] == {"enum": [1, 2]}
    assert kept["properties"]["c"] == {}
    assert kept["properties"]["d"]["type"] == ["string", "null"]
    assert (kept["type"], kept["required"], kept["additionalProperties"]) == ("object", [], False)
    assert kept["$defs"] == {"X": {"type": "object"}}
    again = OpenAIFunctionParametersSchema.model_validate_json(json.dumps(kept))
    assert json.loads(again.model_dump_json(exclude_none=True)) == kept


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_tool_that_exits_is_one_error_result(in_thread: bool) -> None:
    def leave() -> None:
        raise SystemExit(2)

    async def leave_here() -> None:
        leave()

    leaves = tool(leave if in_thread else leave_here, name="leave")
    answered, failed = await run_tool_calls([call("search", '{"query": "x"}'), call("leave", "{}")], [search, leaves])
    assert answered["content"].startswith("x/5")
    assert "SystemExit(2)" in failed["content"]
