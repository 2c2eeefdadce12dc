"""What costs nothing until somebody uses it: the app of a rollout that is loaded to run here, and the model endpoints
of workflows that run here."""

from __future__ import annotations

import subprocess
import sys
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
    assert not issubclass(type(made), DeferredApp)


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
