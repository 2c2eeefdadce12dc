"""What costs nothing until somebody uses it: the app of a rollout that is loaded to run here, and the model endpoints
of workflows that run here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from fastapi import FastAPI

import osmosis
from osmosis.sdk.backend import LocalBackend
from osmosis.serve.deferred import DeferredApp, deferred_maker
from osmosis.serve.drive.on_demand import GateOnDemand
from osmosis.testing.server import running_app

from .support import OneCall, ScriptedModel

LOADED = """
import json, sys
from osmosis.serve.deferred import apps_deferred
with apps_deferred():
    import main
    before = "fastapi" in sys.modules
    title = main.app.title
print(json.dumps([before, title, "fastapi" in sys.modules]))
"""


def deferred_app(**more: Any) -> Any:
    """As `main.py` makes it while it is loaded for its agent."""
    make = deferred_maker("osmosis.serve.server.app", "create_rollout_server")
    return make(LocalBackend(OneCall), configure_logging=False, **more)


def test_a_module_that_makes_an_app_loads_no_web_framework_until_the_app_is_used(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "from osmosis import LocalBackend, AgentWorkflow, create_rollout_server\n"
        "class Work(AgentWorkflow):\n    async def run(self, ctx):\n        return []\n"
        "app = create_rollout_server(LocalBackend(Work))\n"
    )
    ran = subprocess.run([sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == '[false, "Osmosis rollout server", true]'


async def test_a_deferred_app_is_served_and_extended_like_the_real_one() -> None:
    app = deferred_app()
    assert type(app) is DeferredApp
    assert isinstance(app, FastAPI)

    @app.get("/extra")
    async def extra() -> str:
        return "there"

    app.title = "mine"
    app.state.seen = 1
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        assert (await client.get("/extra")).json() == "there"
        assert (await client.get("/health")).status_code == 200
    assert (app.title, app.router.lifespan_context is not None) == ("mine", True)
    outer = FastAPI()
    outer.mount("/inside", app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://here") as client:
        assert (await client.get("/inside/extra")).json() == "there"


def test_what_is_wrong_with_a_deferred_app_is_raised_where_it_is_used() -> None:
    app = deferred_app(no_such_option=1)
    with pytest.raises(TypeError, match="no_such_option"):
        app.routes  # noqa: B018


def test_outside_of_the_block_an_app_is_made_at_once() -> None:
    made: object = osmosis.create_rollout_server(LocalBackend(OneCall), configure_logging=False)
    assert isinstance(made, FastAPI)
    assert type(made) is not DeferredApp


async def ask(endpoint: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {endpoint.bearer}"}
    body = {"messages": [{"role": "user", "content": "?"}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{endpoint.chat_completions_url}/chat/completions", json=body, headers=headers) as reply,
    ):
        return reply.status, await reply.json()


async def test_the_first_call_starts_the_endpoints_of_all_rollouts() -> None:
    model = ScriptedModel()
    async with GateOnDemand(model) as gate:
        first, second, over = (gate.open_rollout(name) for name in ("r1", "r2", "over"))
        gate.close_rollout(over)
        with pytest.raises(ValueError, match="already open"):
            gate.open_rollout("r1")
        assert (await ask(first))[1]["choices"][0]["message"]["content"] == "42"
        assert (await ask(second))[0] == 200
        assert (await ask(over))[0] == 404
        later = gate.open_rollout("r3")
        assert (await ask(later))[0] == 200
        assert [len(one.calls) for one in (first, second, later)] == [1, 1, 1]
        gate.close_rollout(first)
        assert (await ask(first))[0] == 404
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(second)


async def test_endpoints_that_nobody_calls_are_closed_again() -> None:
    async with GateOnDemand(ScriptedModel()) as gate:
        endpoint = gate.open_rollout("r1")
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(endpoint)


SERVED = """
import asyncio, json, sys
sys.argv = ["main.py"]
import main

async def ask(kind, path="", method="GET"):
    told, said = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}], []
    scope = {"type": kind, "asgi": {"version": "3.0"}, "state": {}}
    if kind == "http":
        told = [{"type": "http.request", "body": b""}]
        scope |= {"method": method, "path": path, "raw_path": path.encode(), "headers": [], "query_string": b""}

    async def receive():
        return told.pop(0)

    async def send(message):
        said.append(message.get("status", message["type"]))

    await main.app(scope, receive, send)
    return said[0]

async def go():
    found = [await ask("lifespan"), await ask("http", "/health"), await ask("http", "/rollout/none/status")]
    loaded = sorted({"fastapi", "aiohttp"} & set(sys.modules))
    return [*found, loaded, await ask("http", "/openapi.json")]

print(json.dumps(asyncio.run(go())))
"""


def test_a_server_is_ready_and_answers_without_the_web_framework(tmp_path: Path) -> None:
    """What a rollout's process imports is most of the time between a submit and its first rollout."""
    (tmp_path / "main.py").write_text(
        "from osmosis import LocalBackend, AgentWorkflow, create_rollout_server\n"
        "class Work(AgentWorkflow):\n    async def run(self, ctx):\n        return []\n"
        "app = create_rollout_server(LocalBackend(Work))\n"
    )
    ran = subprocess.run([sys.executable, "-c", SERVED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == ["lifespan.startup.complete", 200, 200, [], 200]


@pytest.mark.parametrize("framework", [False, True])
async def test_the_author_s_lifespan_surrounds_the_server(framework: bool) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        seen.append(f"in {isinstance(app, FastAPI)}")
        app.state.mine = "there"
        yield {"shared": "yes"}
        seen.append(f"out {app.state.mine}")

    app = osmosis.create_rollout_server(LocalBackend(OneCall), life, configure_logging=False)
    if framework:
        app.router.add_route("/extra", lambda _: None)
    async with running_app(app):
        assert seen == ["in True"]
    assert seen == ["in True", "out there"]


async def test_a_lifespan_that_fails_keeps_the_server_from_starting() -> None:
    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    app: Any = osmosis.create_rollout_server(LocalBackend(OneCall), life, configure_logging=False)
    said: list[dict[str, str]] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: dict[str, str]) -> None:
        said.append(message)

    with pytest.raises(RuntimeError, match="no database"):
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert [(one["type"], "no database" in one["message"]) for one in said] == [("lifespan.startup.failed", True)]
