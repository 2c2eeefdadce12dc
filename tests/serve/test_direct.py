"""The shorter way to the declared endpoints answers as the framework does, and ends where somebody adds a layer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis.testing.server import running_app

from .support import OneCall, backend, server

KEY = "the-key-of-this-server"
START = {"initial_messages": [], "chat_completions_url": "http://127.0.0.1:9/v1", "rollout_id": "r1"}
QUESTIONS: list[tuple[str, str, dict[str, str], Any]] = [
    ("GET", "/rollout/none/result", {"X-Osmosis-Rollout-Lease": "x"}, None),
    ("GET", "/rollout/none/status", {}, None),
    ("GET", "/rollout/a b/status", {}, None),
    ("POST", "/rollout", {}, {"rollout_id": 3}),
    ("POST", "/rollout", {"Content-Type": "text/plain"}, START),
    ("POST", "/rollout/cancel", {}, {"ids": ["r1"]}),
    ("POST", "/rollout", {"Authorization": "Bearer wrong"}, START),
    ("GET", "/rollout", {}, None),
    ("GET", "/nothing", {}, None),
    ("HEAD", "/health", {}, None),
]


class Layer:
    """Somebody's own middleware."""

    seen = 0

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        Layer.seen += scope["type"] == "http"
        await self.app(scope, receive, send)


async def answers(tmp_path: Path, *, layer: bool, key: str | None) -> list[Any]:
    app = server(backend(OneCall, root=tmp_path), tmp_path, api_key=key)
    if layer:
        app.add_middleware(Layer)
    found = []
    async with running_app(app) as url, aiohttp.ClientSession() as session:
        for method, path, headers, body in QUESTIONS:
            bearer = {"Authorization": f"Bearer {KEY}"} if key else {}
            async with session.request(method, url + path, headers={**bearer, **headers}, json=body) as reply:
                kept = {name: value for name, value in reply.headers.items() if name.lower() not in ("date", "server")}
                said = re.sub(r'(lease_token":")[^"]+', r"\1...", await reply.text())
                found.append((method, path, reply.status, kept, said))
    return found


@pytest.mark.parametrize("key", [None, KEY])
async def test_both_ways_answer_alike(tmp_path: Path, key: str | None) -> None:
    Layer.seen = 0
    direct = await answers(tmp_path, layer=False, key=key)
    assert Layer.seen == 0
    layered = await answers(tmp_path, layer=True, key=key)
    assert Layer.seen == len(QUESTIONS)
    assert direct == layered


@pytest.mark.parametrize("layer", [False, True])
async def test_a_bug_is_a_500_and_is_logged(tmp_path: Path, layer: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = server(backend(OneCall, root=tmp_path), tmp_path)

    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    app.state.rollouts.accept = broken
    if layer:
        app.add_middleware(Layer)
    async with (
        running_app(app) as url,
        aiohttp.ClientSession() as session,
        session.post(url + "/rollout", json=START) as reply,
    ):
        assert (reply.status, await reply.text()) == (500, "Internal Server Error")
    assert "a bug" in caplog.text
