"""Generation 0.2: init, the agent loop, exactly one completion, authentication, idempotency."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fastapi.testclient import TestClient

from osmosis.compat.server import create_app
from osmosis.compat.settings import RolloutClientSettings, RolloutSettings
from osmosis.errors import AuthRequired
from osmosis.records.protocol.v02 import OpenAIFunctionToolSchema, RolloutRequest
from osmosis.records.run.rollout import Category
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.serve.client.remote import ServerAt, check_key, served
from osmosis.serve.server.callbacks import DeliveryPolicy, Post, Spool, spool_folder
from osmosis.serve.server.queue import ServeLimits, crashed_outcome
from osmosis.serve.server.trace_files import TraceFolder
from osmosis.testing.mock_trainer import RolloutCompletionTracker, create_mock_trainer_app, patch_httpx_for_mock_trainer
from support.attempts import run_attempt
from support.faults import Fault, Faulty
from support.server import answering, running_app
from support.waiting import until

from .support import ScriptedModel, loop_app, open_proxy, plan, task

ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
QUICK = DeliveryPolicy(quick_tries=50, base_delay_s=0.01, max_delay_s=0.02)


class Adds(RolloutAgentLoop):
    name = "adds"
    reward = 1.0

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        if request.metadata.get("no_tools"):
            raise LookupError("the toolbox is locked")
        return [OpenAIFunctionToolSchema.model_validate(ADD)]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        if ctx.request.metadata.get("crash"):
            raise RuntimeError("the abacus broke")
        if ctx.request.metadata.get("leaves"):
            sys.exit("the abacus is closed")
        if ctx.request.metadata.get("odd"):
            odd = {"role": "assistant", "content": "half \ud83d and \ud83d\ude00", "object": object()}
            return ctx.complete([odd], reward=1.0)
        if ctx.request.metadata.get("hang"):
            await asyncio.Event().wait()
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            done = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(done.message)
            ctx.log_event("llm_response", content=done.content, key=ctx.request.api_key)
            if not done.has_tool_calls:
                return ctx.complete(messages, done.finish_reason, reward=self.reward)
            for call in done.tool_calls:
                ctx.record_tool_call(1.0)
                messages.append({"role": "tool", "content": "8", "tool_call_id": call["id"]})
        return ctx.complete(messages, "max_turns")


def request(rollout_id: str, trainer: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "add 5 and 3"}]
    base = {"rollout_id": rollout_id, "server_url": trainer, "messages": messages, "completion_params": {"seed": 7}}
    return {**base, "api_key": "trainer-key-123", **more}


def _none(path: str, body: bytes) -> Fault | None:
    return None


def of(tracker: RolloutCompletionTracker, rollout_id: str) -> list[dict[str, Any]]:
    return [response for response in tracker.responses if response["rollout_id"] == rollout_id]


@asynccontextmanager
async def pair(tmp_path: Path, fault: Any = None, **more: Any) -> AsyncIterator[tuple[Any, str, str, Any]]:
    """A server and a trainer: the client session, both URLs, the tracker."""
    tracker = RolloutCompletionTracker()
    policy = more.pop("delivery_policy", QUICK)
    app = loop_app(Adds(), tmp_path, delivery_policy=policy, **more)
    async with (
        running_app(Faulty(create_mock_trainer_app(tracker), fault or _none)) as trainer,
        running_app(app) as url,
        aiohttp.ClientSession() as session,
    ):
        yield session, url, trainer, tracker


async def test_init_answers_tools_and_one_completion_follows(tmp_path: Path) -> None:
    async with pair(tmp_path) as (session, url, trainer, tracker):
        for _ in range(3):  # repeated: answered alike, run once
            async with session.post(f"{url}/v1/rollout/init", json=request("r/1 ä", trainer)) as reply:
                assert reply.status == 202
                body = await reply.json()
        assert body["rollout_id"] == "r/1 ä"
        assert body["tools"][0]["function"]["name"] == "add"
        await until(lambda: of(tracker, "r/1 ä"))
        async with session.get(f"{url}/health") as reply:
            health = await reply.json()
    assert len(tracker.responses) == 1
    result = tracker.responses[0]
    assert (result["status"], result["finish_reason"], result["reward"]) == ("COMPLETED", "stop", 1.0)
    assert [message["role"] for message in result["final_messages"]] == ["user", "assistant", "tool", "assistant"]
    assert result["metrics"]["num_llm_calls"] == 2
    assert result["metrics"]["num_tool_calls"] == 1
    assert health["agent_loop"] == "adds"
    assert health["completed_rollouts"] == 1


async def test_every_failure_is_one_error_completion(tmp_path: Path) -> None:
    def fault(path: str, body: bytes) -> Fault | None:
        refused = path == "/v1/chat/completions" and b'"refused"' in body
        return Fault(status=400, body=b"no such policy") if refused else None

    settings = RolloutSettings(client=RolloutClientSettings(max_retries=0))
    limits = ServeLimits(rollout_timeout_s=30, drain_s=0.1)
    async with pair(tmp_path, fault, settings=settings, limits=limits) as (session, url, trainer, tracker):
        for name, metadata in {"crash": {"crash": 1}, "hang": {"hang": 1}, "refused": {}}.items():
            async with session.post(f"{url}/v1/rollout/init", json=request(name, trainer, metadata=metadata)) as reply:
                assert reply.status == 202
        await until(lambda: len(tracker.responses) == 2)
    # Leaving stopped the server: the hanging rollout was ended and reported, not dropped.
    ends = {response["rollout_id"]: response for response in tracker.responses}
    assert sorted(response["rollout_id"] for response in tracker.responses) == ["crash", "hang", "refused"]
    assert "shut down" in ends["hang"]["error_message"]
    assert ends["crash"]["status"] == "ERROR"
    assert "the abacus broke" in ends["crash"]["error_message"]
    assert "no such policy" in ends["refused"]["error_message"]


async def test_code_that_leaves_the_process_ends_its_rollout_only(tmp_path: Path) -> None:
    async with pair(tmp_path) as (session, url, trainer, tracker):
        for name, metadata in {"leaves": {"leaves": 1}, "stays": {}}.items():
            async with session.post(f"{url}/v1/rollout/init", json=request(name, trainer, metadata=metadata)) as reply:
                assert reply.status == 202
        await until(lambda: len(tracker.responses) == 2)
    ends = {response["rollout_id"]: response for response in tracker.responses}
    assert ends["leaves"]["status"] == "ERROR"
    assert "SystemExit(the abacus is closed)" in ends["leaves"]["error_message"]
    assert ends["stays"]["status"] == "COMPLETED"


async def test_a_conversation_that_json_cannot_hold_is_delivered_without_the_rest(tmp_path: Path) -> None:
    async with pair(tmp_path) as (session, url, trainer, tracker):
        async with session.post(f"{url}/v1/rollout/init", json=request("odd", trainer, metadata={"odd": 1})) as reply:
            assert reply.status == 202
        await until(lambda: len(tracker.responses) == 1)
    end = tracker.responses[0]
    assert (end["status"], end["reward"]) == ("COMPLETED", 1.0)
    assert end["final_messages"] == [{"role": "assistant", "content": "half \ufffd and \U0001f600"}]


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"server_url": "http://me:pw@127.0.0.1:1"}, "user name"),
        ({"api_key": "two\nlines"}, "line breaks"),
        ({"completion_params": {"temperature": float("nan")}}, "JSON"),
        ({"metadata": {"x": float("inf")}}, "JSON"),
    ],
)
async def test_what_could_not_be_answered_later_is_refused_at_once(
    tmp_path: Path, more: dict[str, Any], where: str
) -> None:
    async with pair(tmp_path) as (session, url, trainer, tracker):
        async with session.post(f"{url}/v1/rollout/init", json=request("r", trainer, **more)) as reply:
            assert (reply.status, where in await reply.text()) == (422, True)
        names = request("nan", trainer, metadata={"said": "NaN, -Infinity"})  # the letters alone are no number
        async with session.post(f"{url}/v1/rollout/init", json=names) as reply:
            assert reply.status == 202
        await until(lambda: len(tracker.responses) == 1)


async def test_failing_tools_are_a_json_500_and_can_be_tried_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as (session, url, trainer, tracker):
        async with session.post(
            f"{url}/v1/rollout/init", json=request("r1", trainer, metadata={"no_tools": True})
        ) as reply:
            assert reply.status == 500
            assert "the toolbox is locked" in (await reply.json())["detail"]
        async with session.post(f"{url}/v1/rollout/init", json=request("r1", trainer)) as reply:
            assert reply.status == 202
        await until(lambda: of(tracker, "r1"))


async def test_a_key_used_for_another_rollout_gets_the_first_answer(tmp_path: Path) -> None:
    async with pair(tmp_path) as (session, url, trainer, tracker):
        answers = []
        for name in ("r1", "r2"):
            body = request(name, trainer, idempotency_key="k")
            async with session.post(f"{url}/v1/rollout/init", json=body) as reply:
                answers.append((reply.status, await reply.json()))
        assert [status for status, _ in answers] == [202, 202]
        assert answers[0][1] == answers[1][1]
        assert answers[1][1]["rollout_id"] == "r1"
        await until(lambda: of(tracker, "r1"))
    assert not of(tracker, "r2")


@pytest.mark.parametrize("limit", ["max_turns", "max_tokens_total"])
async def test_limits_that_allow_nothing_are_accepted_and_end_as_an_error(tmp_path: Path, limit: str) -> None:
    async with pair(tmp_path) as (session, url, trainer, tracker):
        async with session.post(f"{url}/v1/rollout/init", json=request("r1", trainer, **{limit: 0})) as reply:
            assert reply.status == 202
        await until(lambda: of(tracker, "r1"))
    assert tracker.responses[0]["status"] == "ERROR"
    assert f"{limit} is 0" in tracker.responses[0]["error_message"]


async def test_parameters_of_a_tool_name_enum_and_description_as_they_did(tmp_path: Path) -> None:
    plain = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string", "enum": ["x"]}}}
    tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": plain}}

    class Typed(Adds):
        name = "typed"

        def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
            return [tool]  # type: ignore[list-item]

    app = loop_app(Typed(), tmp_path)
    async with running_app(app) as url, aiohttp.ClientSession() as session:
        body = request("r1", "http://127.0.0.1:9")
        async with session.post(f"{url}/v1/rollout/init", json=body) as reply:
            shown = (await reply.json())["tools"][0]["function"]["parameters"]["properties"]
    assert shown["a"] == {"type": "number", "description": None, "enum": None}
    assert shown["b"] == {"type": "string", "description": None, "enum": ["x"]}
    assert plain["properties"]["a"] == {"type": "number"}, "the agent's own tool is left as it is"


async def test_authentication_comes_before_the_body(tmp_path: Path) -> None:
    async with pair(tmp_path, api_key="osm_rollout_test") as (session, url, _trainer, _):
        cases = [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Basic osm_rollout_test"}, 401),
            ({"Authorization": "Bearer kë"}, 401),
            ({"Authorization": "bearer   osm_rollout_test"}, 422),
            ({"Authorization": "osm_rollout_test"}, 422),
        ]
        for headers, expected in cases:
            async with session.post(f"{url}/v1/rollout/init", data="{", headers=headers) as reply:
                assert reply.status == expected, headers
        for path, expected in {"/health": 200, "/platform/health": 401, "/docs": 401, "/openapi.json": 401}.items():
            async with session.get(url + path) as reply:
                assert reply.status == expected, path
        async with session.get(f"{url}/platform/health", headers={"Authorization": "osm_rollout_test"}) as reply:
            assert (await reply.json())["agent_loop"] == "adds"


@pytest.mark.parametrize(
    ("key", "problem"), [("right", None), ("wrong", "rejected this key"), (None, "requires a key")]
)
async def test_a_wrong_key_is_found_out_before_any_rollout(key: str | None, problem: str | None) -> None:
    """A server of that generation alone has no `/rollout`: its `/platform/health` tells."""
    asked: list[str] = []

    async def health(request: web.Request) -> web.Response:
        asked.append(request.path)
        good = request.headers.get("Authorization") == "Bearer right"
        return web.json_response({"status": "healthy"}, status=200 if good else 401)

    refused = pytest.raises(AuthRequired, match=problem) if problem else nullcontext()
    async with answering(health, "/platform/health") as url:
        with refused:
            await check_key(url, key)
    assert asked == ["/platform/health"]


async def test_traces_stay_in_their_folder_and_hold_no_key(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    async with pair(tmp_path, debug_dir=logs, api_key=None) as (session, url, trainer, tracker):
        async with session.post(f"{url}/v1/rollout/init", json=request("../../evil", trainer)) as reply:
            assert reply.status == 202
        await until(lambda: of(tracker, "../../evil"))
    files = list(tmp_path.rglob("*.jsonl"))
    assert len(files) == 1
    assert files[0].is_relative_to(logs)
    text = files[0].read_text()
    assert "trainer-key-123" not in text
    assert json.loads(text.splitlines()[0])["event"] == "llm_response"


async def test_our_driver_drives_an_agent_loop_in_every_generation(tmp_path: Path) -> None:
    app = loop_app(Adds(), tmp_path, delivery_policy=QUICK)
    model = ScriptedModel()
    async with running_app(app) as url, open_proxy(model) as gate:
        for generation in ("0.2", "0.3", "0.4"):
            async with served(ServerAt(url, generation=generation), gate, plan()) as agent:
                one = task(attempt=int(generation[-1]))
                rollout = await run_attempt(agent, gate.model, plan(), one)
            assert rollout.failure is None, (generation, rollout.failure)
            assert rollout.value("reward") == 1.0
            assert rollout.messages[-1]["content"] == "42"
            assert rollout.usage.total_tokens == 10
    assert [request.tools[0]["function"]["name"] for request in model.requests if request.tools] == ["add"] * 3


class Prompted(Adds):
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        return ctx.complete([{"role": "user", "content": ctx.prompts["task"]}], reward=1.0)


async def test_a_served_agent_loop_finds_its_prompts(tmp_path: Path) -> None:
    prompt = Path(__file__).with_name("prompts") / "task.md"
    app = loop_app(Prompted(), tmp_path, delivery_policy=QUICK)
    async with running_app(app) as url, open_proxy(ScriptedModel()) as gate:
        for generation in ("0.2", "0.4"):
            async with served(ServerAt(url, generation=generation), gate, plan()) as agent:
                rollout = await run_attempt(agent, gate.model, plan(), task(attempt=int(generation[-1])))
            assert rollout.failure is None, (generation, rollout.failure)
            assert rollout.messages == [{"role": "user", "content": prompt.read_text().strip()}]


@pytest.mark.parametrize("generation", ["0.2", "0.3", "0.4"])
async def test_a_reward_of_nan_is_an_invalid_score_in_every_generation(tmp_path: Path, generation: str) -> None:
    loop = Adds()
    loop.reward = float("nan")
    app = loop_app(loop, tmp_path, delivery_policy=QUICK)
    async with (
        running_app(app) as url,
        open_proxy(ScriptedModel()) as gate,
        served(ServerAt(url, generation=generation), gate, plan()) as agent,
    ):
        rollout = await run_attempt(agent, gate.model, plan(), task())
    assert rollout.failure is None
    assert rollout.messages[-1]["content"] == "42"
    failure = rollout.scores["reward"].failure
    assert failure.category is Category.INVALID_SCORE
    assert failure.message == "the reward must be a finite number, got nan"


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrent must be positive"):
        create_app(Adds(), max_concurrent=0)


async def test_a_line_that_cannot_be_written_costs_no_later_trace(tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path)
    circle: dict[str, Any] = {}
    circle["again"] = circle
    trace = folder.open("r")
    for fact in ("half \ud83d", circle, {(1, 2): "key"}, "last"):
        trace.write({"event": "e", "fact": fact})
    folder.close()
    lines = [json.loads(line) for line in trace.path.read_text(encoding="utf-8").splitlines()]
    assert [line["fact"] for line in lines] == ["half \ufffd", "{'again': {...}}", "{(1, 2): 'key'}", "last"]


async def test_an_error_text_that_utf8_cannot_hold_is_told(tmp_path: Path) -> None:
    outcome = crashed_outcome(ValueError("half \ud83d"))
    assert "half \ufffd" in outcome.failure.model_dump_json()


@pytest.mark.parametrize("path", ["/v1/rollout/init", "/rollout"])
async def test_tools_that_take_their_time_hold_nobody_up(tmp_path: Path, path: str) -> None:
    asked_in: list[threading.Thread] = []

    class Slow(Adds):
        name = "slow"

        def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
            asked_in.append(threading.current_thread())
            return []

    limits = ServeLimits(drain_s=0, delivery_drain_s=0.1)
    app = loop_app(Slow(), tmp_path, limits=limits)
    bodies = {
        "/v1/rollout/init": request("r", "http://127.0.0.1:9"),
        "/rollout": {"rollout_id": "r", "initial_messages": [], "chat_completions_url": "http://127.0.0.1:9"},
    }
    async with running_app(app) as url, aiohttp.ClientSession() as session:
        async with session.post(url + path, json=bodies[path]) as reply:
            assert reply.status == 202
        await until(lambda: bool(asked_in))
    assert asked_in[0] is not threading.main_thread()


def test_init_to_completion_without_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = RolloutCompletionTracker()
    with TestClient(create_mock_trainer_app(tracker)) as trainer:
        patch_httpx_for_mock_trainer(trainer, monkeypatch)
        with TestClient(loop_app(Adds(), tmp_path, spool_dir=tmp_path)) as server:
            answer = server.post("/v1/rollout/init", json=request("r1", "http://trainer.invalid"))
            assert answer.status_code == 202
            assert tracker.wait(10)
    [response] = tracker.responses
    assert response["status"] == "COMPLETED"
    assert response["metrics"]["num_tool_calls"] == 1


def test_real_results_never_end_in_a_mock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.add(Post("real", "http://trainer.invalid/v1/rollout/completed", '{"rollout_id": "real"}'))
    spool.close()
    tracker = RolloutCompletionTracker()
    with TestClient(create_mock_trainer_app(tracker)) as trainer:
        patch_httpx_for_mock_trainer(trainer, monkeypatch)
        with TestClient(loop_app(Adds(), tmp_path, spool_dir=tmp_path)) as server:
            server.post("/v1/rollout/init", json=request("r1", "http://trainer.invalid"))
            assert tracker.wait(10)
    assert [response["rollout_id"] for response in tracker.responses] == ["r1"]
    assert len(list(tmp_path.glob("server-*/*.json"))) == 1


def test_a_result_is_sent_again_by_its_own_server_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(tmp_path / "root")}
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    spool = Spool(spool_folder(tmp_path / "root" / "undelivered", Adds.name))
    kept = spool.add(Post("real", "http://127.0.0.1:9/v1/rollout/completed", '{"rollout_id": "real"}'))
    spool.close()
    left = {}
    for folder in ("other", "mine"):
        monkeypatch.chdir(tmp_path / folder)
        app = loop_app(Adds(), tmp_path, environ=environ, spool_dir=None)
        with TestClient(app):
            left[folder] = app.state.runtime.delivery.has("real")
    assert left == {"other": False, "mine": True}
    assert kept.exists()
