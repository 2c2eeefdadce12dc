"""Agent loops of generation 0.2: subclass rules, context, traces, registry, validator, the trainer's client."""

from __future__ import annotations

import asyncio
import json
import pickle
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from osmosis.base.variables import SettingsError
from osmosis.compat.llm_clients import OsmosisLLMClient
from osmosis.compat.settings import RolloutClientSettings, RolloutSettings, get_settings, reset_settings
from osmosis.compat.validator import AgentLoopRegistry, AgentLoopValidationError, validate_agent_loop
from osmosis.records.protocol.v02 import (
    DEFAULT_MAX_METADATA_SIZE_BYTES,
    OpenAIFunctionCallSchema,
    OpenAIFunctionParsedSchema,
    RolloutMetrics,
    RolloutRequest,
    ToolResponse,
    set_max_metadata_size_bytes,
)
from osmosis.sdk.agent_loop import LLMClientProtocol, RolloutAgentLoop, RolloutContext, RolloutResult, trace_path
from osmosis.sdk.messages import count_messages_by_role, get_message_content, normalize_stop, parse_tool_calls
from osmosis.sdk.tools import ToolLoop, tool
from osmosis.sdk.types import (
    AgentLoopNotFoundError,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from osmosis.testing.scripted import ScriptedLLM, call, says
from support.server import answering


def request(**more: Any) -> RolloutRequest:
    given = {
        "rollout_id": "r-1",
        "server_url": "http://trainer/",
        "messages": [{"role": "user", "content": "hi"}],
        "completion_params": {"temperature": 0.2},
    }
    return RolloutRequest(**{**given, **more})


class Loop(RolloutAgentLoop):
    name = "loop"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        return ctx.complete(ctx.request.messages)


def test_usable_loops_need_a_name_and_abstract_ones_do_not() -> None:
    class Base(RolloutAgentLoop):
        @abstractmethod
        def prompt(self) -> str: ...

        def get_tools(self, request: RolloutRequest) -> list[Any]:
            return []

        async def run(self, ctx: RolloutContext) -> RolloutResult:
            return ctx.complete([])

    with pytest.raises(TypeError, match="must define a 'name' class attribute"):

        class Nameless(Base):
            def prompt(self) -> str:
                return ""

    with pytest.raises(TypeError, match="must define a 'name' class attribute"):

        class Blank(Loop):
            name = " "


class TestRequest:
    @pytest.mark.parametrize(
        "bad",
        [
            {"rollout_id": " "},
            {"rollout_id": "x" * 257},
            {"server_url": "ftp://host"},
            {"server_url": "http://"},
            {"metadata": {"f": {1}}},
        ],
    )
    def test_bad_ones_are_refused(self, bad: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            request(**bad)

    def test_defaults_and_verbatim_url(self) -> None:
        made = request(surprise=1)
        assert (made.max_turns, made.max_tokens_total, made.server_url) == (10, 8192, "http://trainer/")

    def test_metadata_limit_can_be_moved_and_says_its_size(self) -> None:
        set_max_metadata_size_bytes(100)
        try:
            with pytest.raises(ValidationError, match="the limit is 100 bytes"):
                request(metadata={"a": "x" * 200})
        finally:
            set_max_metadata_size_bytes(DEFAULT_MAX_METADATA_SIZE_BYTES)
        with pytest.raises(ValueError, match="positive"):
            set_max_metadata_size_bytes(0)


async def test_context_counts_and_ends() -> None:
    llm = ScriptedLLM([says("hello")])
    assert isinstance(llm, LLMClientProtocol)
    ctx = RolloutContext(request=request(), tools=[], llm=llm, _start_time=1e-9)
    answer = await ctx.chat([{"role": "user", "content": "hi"}], seed=3)
    assert (answer.content, answer.tool_calls, answer.has_tool_calls) == ("hello", [], False)
    assert llm.questions[0]["seed"] == 3
    ctx.record_tool_call(latency_ms=5)
    done = ctx.complete([{"role": "user"}], reward=0.5)
    assert (done.status, done.finish_reason, done.reward) == ("COMPLETED", "stop", 0.5)
    assert done.metrics is not None
    assert (done.metrics.num_tool_calls, done.metrics.tool_latency_ms, done.metrics.num_llm_calls) == (1, 5, 1)
    assert done.metrics.total_latency_ms > 0
    took = done.metrics.total_latency_ms
    assert (done.metrics.total_latency_ms, pickle.loads(pickle.dumps(done)).metrics) == (took, done.metrics)
    assert RolloutResult("ERROR", [], "error").metrics is None
    failed = ctx.error("no")
    assert (failed.status, failed.finish_reason, failed.final_messages, failed.error_message) == (
        "ERROR",
        "error",
        [],
        "no",
    )


def test_traces_stay_in_their_folder_and_hide_the_key(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    ctx = RolloutContext(
        request=request(rollout_id="../../evil", api_key="hidden-key"), tools=[], llm=ScriptedLLM([]), _debug_dir=folder
    )
    assert ctx.debug_enabled
    ctx.log_event("start", text="key is hidden-key", odd=object())
    ctx.log_event("end")
    files = list(tmp_path.rglob("*.jsonl"))
    assert [file.parent for file in files] == [folder]
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "end"]
    assert lines[0]["rollout_id"] == "../../evil"
    assert "hidden-key" not in files[0].read_text()
    assert trace_path(folder, "plain-1").name == "plain-1.jsonl"
    assert trace_path(folder, "a/b") != trace_path(folder, "a_b")
    silent = RolloutContext(request=request(), tools=[], llm=ScriptedLLM([]))
    silent.log_event("nothing")
    assert not silent.debug_enabled


@tool
async def add(a: float, b: float) -> float:
    """Add."""
    return a + b


async def test_tool_loop_runs_until_the_model_answers() -> None:
    llm = ScriptedLLM([says(None, call("add", '{"a": 1, "b": 2}'), call("none", "{}", "c2")), says("3")])
    loop = ToolLoop([add])
    ctx = RolloutContext(request=request(), tools=loop.get_tools(request()), llm=llm)
    done = await loop.run(ctx)
    assert [m["role"] for m in done.final_messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert done.final_messages[2]["content"] == "3.0"
    assert done.finish_reason == "stop"
    assert done.metrics is not None
    assert done.metrics.num_tool_calls == 2


async def test_tool_loop_keeps_its_limits() -> None:
    endless = [says(None, call("add", '{"a": 1, "b": 2}'))] * 5
    for more, reason, asked in (({"max_turns": 2}, "max_turns", 2), ({"max_tokens_total": 5}, "max_tokens", 1)):
        llm = ScriptedLLM(endless)
        done = await ToolLoop([add]).run(RolloutContext(request=request(**more), tools=[], llm=llm))
        assert (done.finish_reason, len(llm.questions)) == (reason, asked)


def test_registry() -> None:
    registry, loop = AgentLoopRegistry(), Loop()
    registry.register(loop)
    with pytest.raises(ValueError, match="'loop' is already registered"):
        registry.register(Loop())
    assert (registry.get("loop"), registry.list_names(), registry.get("x")) == (loop, ["loop"], None)
    assert registry.unregister("loop")
    assert not registry.unregister("loop")
    error = AgentLoopNotFoundError("x", ["a", "b"])
    assert "'x'" in str(error)
    assert "a, b" in str(error)


class TestValidator:
    def found(self, loop: Any) -> tuple[list[str], list[str]]:
        result = validate_agent_loop(loop)
        assert bool(result) == (not result.errors)
        return [one.code for one in result.errors], [one.code for one in result.warnings]

    def loop(self, tools: Any = (), **attributes: Any) -> Any:
        async def run(ctx: Any) -> None: ...

        def get_tools(request: Any) -> Any:
            if isinstance(tools, Exception):
                raise tools
            return list(tools) if tools == () else tools

        return type(
            "Any", (), {"name": "n", "run": staticmethod(run), "get_tools": staticmethod(get_tools), **attributes}
        )()

    def test_good_loops_pass(self) -> None:
        assert self.found(Loop()) == ([], [])
        assert self.found(ToolLoop([add])) == ([], [])

    @pytest.mark.parametrize(
        ("attributes", "code"),
        [
            ({"name": None}, "MISSING_NAME"),
            ({"name": 3}, "INVALID_NAME_TYPE"),
            ({"name": " "}, "EMPTY_NAME"),
            ({"run": None}, "MISSING_RUN_METHOD"),
            ({"run": 3}, "RUN_NOT_CALLABLE"),
            ({"run": staticmethod(lambda ctx: None)}, "RUN_NOT_ASYNC"),
        ],
    )
    def test_attributes(self, attributes: dict[str, Any], code: str) -> None:
        assert self.found(self.loop(**attributes))[0] == [code]

    @pytest.mark.parametrize(
        ("tools", "code"),
        [
            (ValueError("x"), "GET_TOOLS_EXCEPTION"),
            (None, "GET_TOOLS_RETURNS_NONE"),
            ((1,), "GET_TOOLS_INVALID_TYPE"),
            ([3], "INVALID_TOOL_TYPE"),
            ([{"function": {"name": "f", "description": "d"}}], "MISSING_TOOL_TYPE"),
            ([{"type": "function"}], "MISSING_FUNCTION"),
            ([{"type": "function", "function": 3}], "INVALID_FUNCTION_TYPE"),
            ([{"type": "function", "function": {"description": "d"}}], "MISSING_FUNCTION_NAME"),
            ([{"type": "function", "function": {"name": "a b", "description": "d"}}], "INVALID_FUNCTION_NAME"),
            (
                [{"type": "function", "function": {"name": "f", "description": "d", "parameters": 3}}],
                "INVALID_PARAMETERS_TYPE",
            ),
        ],
    )
    def test_tools(self, tools: Any, code: str) -> None:
        assert self.found(self.loop(tools)) == ([code], [])

    def test_warnings_do_not_stop(self) -> None:
        odd = {"type": "magic", "function": {"name": "a-b", "parameters": {"type": "array"}}}
        errors, warnings = self.found(self.loop([odd]))
        assert errors == []
        assert warnings == ["UNKNOWN_TOOL_TYPE", "MISSING_FUNCTION_DESCRIPTION", "PARAMETERS_TYPE_NOT_OBJECT"]

    def test_raising_lists_every_problem(self) -> None:
        with pytest.raises(AgentLoopValidationError, match=r"2 error\(s\)") as caught:
            validate_agent_loop(self.loop([3], name=None)).raise_if_invalid()
        assert str(caught.value.errors[0]) == (
            "[MISSING_NAME] name: the agent loop has no name: set the class attribute `name`"
        )

    def test_the_exception_is_in_the_details(self) -> None:
        result = validate_agent_loop(self.loop(ValueError("why")))
        assert result.errors[0].details == {"exception_type": "ValueError", "exception_message": "why"}


SETTINGS = RolloutSettings(client=RolloutClientSettings(retry_base_delay=0.1, retry_max_delay=1))


@asynccontextmanager
async def trainer(*answers: tuple[int, str]) -> AsyncIterator[tuple[str, list[Any]]]:
    asked: list[Any] = []
    waiting = list(answers)

    async def answer(incoming: web.Request) -> web.Response:
        asked.append((incoming.path, await incoming.json(), incoming.headers.get("Authorization")))
        status, text = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        more = {302: {"Location": "/elsewhere"}, 429: {"Retry-After": "0"}}
        return web.Response(status=status, text=text, headers=more.get(status))

    async with answering(answer) as url:
        yield url, asked


ANSWER = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": "x", "tool_calls": None}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        "token_ids": [1, 2],
    }
)


class TestTrainerClient:
    def client(self, url: str, **more: Any) -> OsmosisLLMClient:
        return OsmosisLLMClient(url + "/", "r-1", api_key="k", settings=SETTINGS, **more)

    async def test_one_call_and_its_metrics(self) -> None:
        async with trainer((200, ANSWER)) as (url, asked), self.client(url) as llm:
            answer = await llm.chat_completions([{"role": "user", "content": "a"}], stop="END", seed=4, tools=[1])
        path, body, bearer = asked[0]
        assert (path, bearer) == ("/v1/chat/completions", "Bearer k")
        assert body == {
            "model": "default",
            "messages": [{"role": "user", "content": "a"}],
            "rollout_id": "r-1",
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": 512,
            "stop": ["END"],
            "logprobs": True,
            "seed": 4,
        }
        assert (answer.token_ids, answer.tool_calls) == ([1, 2], [])
        metrics = llm.get_metrics()
        assert (metrics.num_llm_calls, metrics.prompt_tokens, metrics.response_tokens) == (1, 7, 2)
        assert metrics.max_context_tokens == 9

    async def test_limits_and_faults_are_repeated(self) -> None:
        async with trainer((429, ""), (503, ""), (200, ANSWER)) as (url, asked), self.client(url) as llm:
            await llm.chat_completions([])
        assert len(asked) == 3

    @pytest.mark.parametrize(
        ("status", "error", "calls"),
        [
            (302, OsmosisValidationError, 1),  # a redirected POST would be a GET, or carry the key to somebody else
            (400, OsmosisValidationError, 1),
            (500, OsmosisServerError, 2),
            (429, OsmosisValidationError, 2),
        ],
    )
    async def test_refusals(self, status: int, error: type[Exception], calls: int) -> None:
        async with trainer((status, "why")) as (url, asked), self.client(url, max_retries=1) as llm:
            with pytest.raises(error, match="why") as caught:
                await llm.chat_completions([])
        assert caught.value.status_code == status  # type: ignore[attr-defined]
        assert len(asked) == calls

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"choices": []}', '{"choices": [{"message": 3}]}', "null"])
    async def test_answers_that_are_none(self, text: str) -> None:
        async with trainer((200, text)) as (url, _), self.client(url) as llm:
            with pytest.raises(OsmosisServerError, match="did not answer with a chat completion"):
                await llm.chat_completions([])

    async def test_usage_may_be_missing(self) -> None:
        body = '{"choices": [{"message": {"content": "x"}}], "usage": null}'
        async with trainer((200, body)) as (url, _), self.client(url) as llm:
            assert (await llm.chat_completions([])).usage == {}

    async def test_calls_that_cannot_be_sent(self) -> None:
        with pytest.raises(ValueError, match="timeout_seconds must be positive"):
            self.client("http://127.0.0.1:9", timeout_seconds=0)
        async with self.client("http://127.0.0.1:9") as llm:
            with pytest.raises(OsmosisValidationError, match="not JSON"):
                await llm.chat_completions([{"role": "user", "content": object()}])

    async def test_no_time_between_attempts_is_none(self) -> None:
        never = RolloutSettings(client=RolloutClientSettings(retry_base_delay=60, retry_max_delay=300))
        async with trainer((429, "")) as (url, asked), OsmosisLLMClient(url, "r-1", settings=never) as llm:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(llm.chat_completions([]), 0.1)
        assert len(asked) == 1

    async def test_unreachable(self) -> None:
        async with self.client("http://127.0.0.1:9", max_retries=0) as llm:
            with pytest.raises(OsmosisTransportError):
                await llm.chat_completions([])

    async def test_late(self) -> None:
        release = asyncio.Event()

        async def never(_: web.Request) -> web.Response:
            await release.wait()
            return web.Response()

        async with answering(never) as url, self.client(url, max_retries=0, timeout_seconds=0.05) as llm:
            with pytest.raises(OsmosisTimeoutError, match=r"within 0\.05 s"):
                await llm.chat_completions([])
            release.set()

    @pytest.mark.parametrize("status", [200, 202, 204])
    async def test_any_2xx_completes(self, status: int) -> None:
        async with trainer((status, "")) as (url, asked), self.client(url) as llm:
            await llm.complete_rollout("COMPLETED", [], reward=1.0, metrics=RolloutMetrics())
            with pytest.raises(ValueError, match="DONE"):
                await llm.complete_rollout("DONE", [])
        assert len(asked) == 1
        assert asked[0][0] == "/v1/rollout/completed"
        assert asked[0][1]["status"] == "COMPLETED"
        assert "error_message" not in asked[0][1]


def test_small_readers() -> None:
    assert normalize_stop("a") == ["a"]
    assert normalize_stop([1]) == ["1"]
    assert normalize_stop(3) is None
    assert parse_tool_calls({"tool_calls": None}) == []
    assert get_message_content({"content": None}) == ""
    assert count_messages_by_role([{"role": "user"}, {"role": "user"}, {}]) == {"user": 2, "unknown": 1}
    decoded, failed = OpenAIFunctionCallSchema.from_openai_function_parsed_schema(
        OpenAIFunctionParsedSchema(name="f", arguments="[")
    )
    assert (decoded.arguments, failed) == ({}, True)
    assert ToolResponse().is_empty()
    assert ToolResponse(text="a").is_text_only()
    with pytest.raises(ValidationError, match="must be a list"):
        ToolResponse(image="a")


def test_settings_come_from_the_environment_and_have_ranges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "7")
    (tmp_path / ".env").write_text("OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS=9\n")
    settings = RolloutSettings()
    assert (settings.client.max_retries, settings.server.max_concurrent_rollouts) == (7, 9)
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "11")
    with pytest.raises(ValidationError):
        RolloutSettings()
    reset_settings()
    with pytest.raises(SettingsError, match=r"OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES=11: .* less than or equal to 10"):
        get_settings()
    reset_settings()
