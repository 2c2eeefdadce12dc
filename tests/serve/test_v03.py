"""`POST /rollout` and its neighbours, spoken by hand: what a foreign client may rely on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from osmosis.serve.server.queue import ServeLimits
from support.server import running_app
from support.waiting import until

from .support import Hangs, OneCall, ScriptedModel, backend, open_proxy, server

LEASE = "X-Osmosis-Rollout-Lease"


class Talk:
    """One client of one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, app: Any) -> None:
        self.session = session
        self.url = url
        self.app = app

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        if isinstance(body, (str, bytes)):
            headers = {"Content-Type": "application/json", **headers}
        kind = {"data": body} if isinstance(body, (str, bytes)) else {"json": body}
        async with self.session.request(method, self.url + path, headers=headers, **kind) as reply:
            return reply.status, await reply.json()

    async def start(self, rollout_id: str | None = "r1", **more: Any) -> tuple[int, Any]:
        body = {"initial_messages": [], "chat_completions_url": "http://127.0.0.1:9/v1", "rollout_id": rollout_id}
        return await self.ask("POST", "/rollout", {**body, **more})


@asynccontextmanager
async def talking(
    tmp_path: Path, workflow: type = Hangs, *, limit: int | None = None, **limits: Any
) -> AsyncIterator[Talk]:
    bounds = ServeLimits(**{"drain_s": 0.0, "delivery_drain_s": 0.1, **limits})
    app = server(backend(workflow, root=tmp_path, limit=limit), tmp_path, limits=bounds)
    async with running_app(app) as url, aiohttp.ClientSession() as session:
        yield Talk(session, url, app)


async def test_polling_waits_for_changes_and_the_result_can_be_read_again(tmp_path: Path) -> None:
    async with open_proxy(ScriptedModel()) as gate, talking(tmp_path, OneCall) as talk:
        rollout = gate.open_rollout("r1")
        status, accepted = await talk.start(
            chat_completions_url=rollout.chat_completions_url, llm_api_key=rollout.bearer, label="42"
        )
        assert (status, accepted["status"]) == (202, "queued")
        assert (accepted["result_wait_timeout_sec"], accepted["polling_lease_timeout_sec"]) == (30, 120)
        headers = {LEASE: accepted["polling_lease_token"]}
        seen = []
        while not seen or seen[-1]["status"] not in ("success", "failure"):
            seen.append((await talk.ask("GET", "/rollout/r1/result", **headers))[1])
        assert seen[-1]["sample"]["reward"] == 1.0
        assert (await talk.ask("GET", "/rollout/r1/result", **headers)) == (200, seen[-1])
        assert (await talk.ask("GET", "/rollout/r1/status"))[1]["status"] == "success"


async def test_only_the_lease_reads_and_only_what_exists(tmp_path: Path) -> None:
    async with talking(tmp_path, result_wait_s=0.05) as talk:
        _, accepted = await talk.start()
        status, said = await talk.ask("GET", "/rollout/r1/result")
        assert (status, said["detail"][0]["loc"]) == (422, ["header", LEASE])
        assert (await talk.ask("GET", "/rollout/r1/result", **{LEASE: "other"}))[0] == 403
        assert (await talk.ask("GET", "/rollout/none/result", **{LEASE: "other"}))[0] == 404
        assert (await talk.ask("GET", "/rollout/none/status"))[1]["status"] == "unknown"
        status, state = await talk.ask("GET", "/rollout/r1/result", **{LEASE: accepted["polling_lease_token"]})
        assert (status, state["status"]) == (200, "running")
        assert (await talk.start())[0] == 409


async def test_a_rollout_nobody_reads_is_cancelled_when_its_lease_ends(tmp_path: Path) -> None:
    async with talking(tmp_path, lease_s=0.2) as talk:
        _, accepted = await talk.start()
        await until(lambda: talk.app.state.runtime.queue.active == 0)
        _, state = await talk.ask("GET", "/rollout/r1/result", **{LEASE: accepted["polling_lease_token"]})
        assert state["status"] == "cancelled"
        assert "lease" in state["err_message"]


async def test_a_reader_holds_the_lease_while_it_waits(tmp_path: Path) -> None:
    async with talking(tmp_path, lease_s=0.1, result_wait_s=0.4) as talk:
        _, accepted = await talk.start()
        _, state = await talk.ask("GET", "/rollout/r1/result", **{LEASE: accepted["polling_lease_token"]})
        while state["status"] == "queued":
            _, state = await talk.ask("GET", "/rollout/r1/result", **{LEASE: accepted["polling_lease_token"]})
        assert state["status"] == "running"


async def test_cancelling_by_ids_prefix_and_all(tmp_path: Path) -> None:
    async with talking(tmp_path, limit=2) as talk:
        for name in ("a1", "a2", "b1", "b2"):
            await talk.start(name)

        async def cancel(**body: Any) -> tuple[int, Any]:
            return await talk.ask("POST", "/rollout/cancel", body)

        assert (await cancel(ids=["b1", "none"]))[1]["dispositions"] == {"b1": "cancelled_queued", "none": "not_found"}
        assert (await cancel(prefix="a"))[1]["dispositions"] == {"a1": "cancelled_running", "a2": "cancelled_running"}
        assert set((await cancel(all=True))[1]["dispositions"]) == {"b2"}
        assert (await cancel())[0] == 422
        assert (await cancel(all=True, prefix="a"))[0] == 422
        health = (await talk.ask("GET", "/health"))[1]
        assert health["lifecycle"] == {"accepting_rollouts": True, "active_rollouts": 0}


@pytest.mark.parametrize(
    "more",
    [
        {"rollout_id": "../evil"},
        {"rollout_id": ".."},
        {"rollout_id": None},
        {"llm_api_key": ""},
        {"agent_timeout_sec": 0},
        {"agent_timeout_sec": "Infinity"},
        {"initial_messages": "hello"},
        {"chat_completions_url": None},
        {"completion_callback_url": "nowhere"},
        {"grader_callback_url": "http://127.0.0.1:99999/x"},
        {"completion_callback_url": "http://me:pw@127.0.0.1/x", "controller_api_key": "k"},
        {"controller_api_key": "two\nlines"},
        {"llm_api_key": "two\r\nlines"},
        {"metadata": {"deep": [float("nan")]}},
    ],
)
async def test_a_bad_request_is_422_with_the_reason(tmp_path: Path, more: dict[str, Any]) -> None:
    async with talking(tmp_path) as talk:
        status, answer = await talk.start(**more)
        assert status == 422
        assert answer["detail"]
        assert (await talk.ask("POST", "/rollout", b"{" * 10))[0] == 422
        assert talk.app.state.runtime.queue.active == 0


async def test_a_body_beyond_the_limit_is_413(tmp_path: Path) -> None:
    async with talking(tmp_path, max_body_bytes=1000) as talk:
        assert (await talk.start(label="x" * 2000))[0] == 413


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    async with talking(tmp_path, limit=1, max_queue=2) as talk:
        statuses = [(await talk.start(f"r{index}"))[0] for index in range(5)]
        assert statuses == [202, 202, 202, 429, 429]
        concurrency = (await talk.ask("GET", "/health"))[1]["concurrency"]
        assert concurrency == {"max_concurrent": 1, "queued": 2, "running": 1}


@pytest.mark.parametrize(("allowed", "asked", "bound"), [(None, 3, 3), (2, 3, 2), (5, 3, 3), (5, None, 5)])
async def test_a_server_can_bound_what_its_backend_allows(
    tmp_path: Path, allowed: int | None, asked: int | None, bound: int
) -> None:
    limits = ServeLimits(drain_s=0.0, delivery_drain_s=0.1)
    on = backend(Hangs, root=tmp_path, limit=allowed)
    app = server(on, tmp_path, limits=limits, max_concurrent=asked)
    async with running_app(app) as url, aiohttp.ClientSession() as session:
        talk = Talk(session, url, app)
        for index in range(6):
            await talk.start(f"r{index}")
        concurrency = (await talk.ask("GET", "/health"))[1]["concurrency"]
    assert concurrency == {"max_concurrent": bound, "queued": 6 - bound, "running": bound}


async def test_the_same_init_again_without_a_grader_callback_starts_nothing(tmp_path: Path) -> None:
    """Nothing is graded then, which the server notes in its own copy of the request."""
    async with talking(tmp_path) as talk:
        callback = {"completion_callback_url": "http://127.0.0.1:9/done"}
        assert await talk.start(**callback) == (202, {})
        assert await talk.start(**callback) == (202, {})
        assert (await talk.start(**callback, label="other"))[0] == 409
        assert talk.app.state.runtime.queue.active == 1


async def test_callbacks_are_said_once_and_the_same_init_again_starts_nothing(tmp_path: Path) -> None:
    async with open_proxy(ScriptedModel()) as gate, talking(tmp_path, OneCall) as talk:
        rollout = gate.open_rollout("r1")
        init = {
            "chat_completions_url": rollout.chat_completions_url,
            "llm_api_key": rollout.bearer,
            "controller_api_key": rollout.callback_key,
            "completion_callback_url": rollout.completion_callback_url,
            "grader_callback_url": rollout.grader_callback_url,
            "metadata": {"k": 1},
            "extra_fields": {"tag": "t"},
        }
        assert await talk.start(**init) == (202, {})
        assert await talk.start(**init) == (202, {})
        assert (await talk.start(**{**init, "label": "other"}))[0] == 409
        await rollout.result(10)
        await until(lambda: not talk.app.state.runtime.delivery.waiting)
        assert rollout.completion.extra_fields == {"tag": "t"}
        assert len(rollout.calls) == 1


async def test_a_draining_server_ends_everything_and_takes_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path, limit=1, drain_s=0.2) as talk:
        leases = [(await talk.start(name))[1]["polling_lease_token"] for name in ("running", "queued")]
        reads = [
            asyncio.create_task(talk.ask("GET", f"/rollout/{name}/result", **{LEASE: lease}))
            for name, lease in zip(("running", "queued"), leases, strict=True)
        ]
        await until(lambda: talk.app.state.runtime.queue.concurrency().running == 1)
        await asyncio.sleep(0)
        drain = asyncio.create_task(talk.app.state.runtime.drain())
        await until(lambda: not talk.app.state.runtime.queue.accepting)
        assert (await talk.start("late"))[0] == 503
        await drain
        states = []
        for name, lease, read in zip(("running", "queued"), leases, reads, strict=True):
            _, state = await read
            while state["status"] not in ("failure", "success"):
                _, state = await talk.ask("GET", f"/rollout/{name}/result", **{LEASE: lease})
            states.append(state)
        assert all("shut down" in state["err_message"] for state in states)


async def test_health_names_the_process_by_a_text_of_its_own(tmp_path: Path) -> None:
    told = []
    for _ in range(2):
        async with talking(tmp_path) as talk:
            told.append((await talk.ask("GET", "/health"))[1])
    assert [health["status"] for health in told] == ["ok", "ok"]
    assert all(isinstance(health["process_id"], str) for health in told)
    assert told[0]["process_id"] != told[1]["process_id"]
    assert told[0]["instance_id"] == told[0]["process_id"], "nobody named this instance"


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"initial_messages": 3, "chat_completions_url": "http://127.0.0.1:9/v1"}, ["body", "initial_messages"]),
        ("{nope", ["body"]),
        ('{"agent_timeout_sec": NaN}', ["body"]),
    ],
)
async def test_what_is_wrong_with_a_body_is_located_in_the_body(tmp_path: Path, body: Any, loc: list[str]) -> None:
    async with talking(tmp_path) as talk:
        status, said = await talk.ask("POST", "/rollout", body)
    assert (status, said["detail"][0]["loc"]) == (422, loc)
