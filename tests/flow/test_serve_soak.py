"""Hundreds of rollouts through a server process whose trainer fails, hangs up and goes away, across a restart.

Every accepted rollout must end in exactly one terminal result, whatever fails, and no trace may hold a secret.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from osmosis.serve.drive.process import free_port

pytestmark = pytest.mark.flow

COUNT = 240
SERVER_KEY = "osm_rollout_soak-server-key-0001"
TRAINER_KEY = "soak-trainer-key-0002"
ENV_SECRET = "soak-provider-key-0003"

AGENT = """
    import asyncio, os
    from osmosis.sdk.agent_loop import RolloutAgentLoop

    class Loop(RolloutAgentLoop):
        name = "soak"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            mood = ctx.request.metadata.get("mood")
            ctx.log_event("start", mood=mood, key=ctx.request.api_key, env=os.environ["PROVIDER_API_KEY"])
            if mood == "crash":
                raise RuntimeError("crashed on purpose with " + os.environ["PROVIDER_API_KEY"])
            if mood == "hang":
                await asyncio.Event().wait()
            if mood == "slow":
                await asyncio.sleep(1)
            messages = list(ctx.request.messages)
            for _ in range(2):
                done = await ctx.chat(messages)
                messages.append(done.message)
            if mood == "odd":
                return {"not": "a result"}
            return ctx.complete(messages, reward=float("nan") if mood == "nan" else 1.0)

    agent_loop = Loop()
"""
MOODS = ["fine"] * 12 + ["slow"] * 3 + ["crash", "hang", "odd", "nan"]


class Trainer:
    """Answers, and misbehaves by a seeded dice; keeps every terminal message it has taken."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.down = False
        self.taken: dict[tuple[str, str], set[bytes]] = defaultdict(set)
        self.faults = 0
        self.url = ""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/rollout/completed", self.completed)
        app.router.add_post("/callbacks/{kind}", self.callback)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def fault(self, request: web.Request) -> web.Response | None:
        roll = self.dice.random()
        if self.down or roll < 0.08:
            self.faults += 1
            return web.Response(status=503)
        if roll < 0.14:
            self.faults += 1
            return web.Response(status=429, headers={"Retry-After": "0.05"})
        if roll < 0.18:
            self.faults += 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        return None

    async def chat(self, request: web.Request) -> web.Response:
        await request.read()
        if (broken := self.fault(request)) is not None:
            return broken
        message = {"role": "assistant", "content": "ok"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return web.json_response({"id": "c", "created": 1, "choices": choices, "usage": usage})

    async def completed(self, request: web.Request) -> web.Response:
        return await self.take(request, "completed")

    async def callback(self, request: web.Request) -> web.Response:
        return await self.take(request, request.match_info["kind"])

    async def take(self, request: web.Request, kind: str) -> web.Response:
        body = await request.read()
        if (broken := self.fault(request)) is not None:
            return broken
        assert request.headers["Authorization"] == f"Bearer {TRAINER_KEY}"
        self.taken[(orjson.loads(body)["rollout_id"], kind)].add(body)
        if self.dice.random() < 0.05:  # taken, but the answer is lost
            self.faults += 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"status": "ok"})


class Server:
    """`osmosis serve` as a process, started twice on the same port and data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = (folder / "server.log").open("ab")
        (folder / "agent.py").write_text(textwrap.dedent(AGENT))

    async def start(self) -> None:
        environ = {
            **os.environ,
            "OSMOSIS_DATA_DIR": str(self.folder / "data"),
            "PROVIDER_API_KEY": ENV_SECRET,
            "OSMOSIS_ROLLOUT_CLIENT_RETRY_BASE_DELAY": "0.1",
            "OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES": "8",
            "OSMOSIS_ROLLOUT_SERVER_REQUEST_TIMEOUT_SECONDS": "10",
        }
        words = ["-m", "osmosis", "serve", "-m", "agent:agent_loop", "-H", "127.0.0.1", "-p", str(self.port)]
        flags = ["--skip-register", "--api-key", SERVER_KEY, "--log", "traces", "--drain", "1"]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *words, *flags, cwd=self.folder, env=environ, stdout=self.log, stderr=self.log
        )
        async with aiohttp.ClientSession() as session:
            for _ in range(1200):
                try:
                    async with session.get(f"{self.url}/health") as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    assert self.process.returncode is None, (self.folder / "server.log").read_text()
                    await asyncio.sleep(0.05)
        raise AssertionError("the server did not come up")

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), 60)


class Drive:
    """Sends every init until it is accepted, some of them twice; half speak 0.2, half the 0.3 callbacks."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, trainer: Trainer) -> None:
        self.session = session
        self.server = server
        self.trainer = trainer
        self.accepted: dict[str, str] = {}
        self.headers = {"Authorization": f"Bearer {SERVER_KEY}"}

    async def one(self, index: int) -> None:
        rollout_id = f"soak-{index:04d}"
        path, body = self.message(index, rollout_id)
        while rollout_id not in self.accepted:
            for _ in range(1 + index % 2):  # a repeated init must not start a second run
                status = await self.post(path, body)
                if status == 202:
                    self.accepted[rollout_id] = path
                elif status not in (None, 429, 503):
                    raise AssertionError(f"{rollout_id}: {status}")
            await asyncio.sleep(0.05)

    def message(self, index: int, rollout_id: str) -> tuple[str, dict[str, Any]]:
        messages = [{"role": "user", "content": f"row {index}"}]
        metadata = {"mood": MOODS[index % len(MOODS)]}
        if index % 2:
            base = {"rollout_id": rollout_id, "server_url": self.trainer.url, "api_key": TRAINER_KEY}
            more = {"messages": messages, "completion_params": {}, "metadata": metadata}
            return "/v1/rollout/init", {**base, **more}
        return "/rollout", {
            "rollout_id": rollout_id,
            "initial_messages": messages,
            "metadata": metadata,
            "chat_completions_url": f"{self.trainer.url}/v1",
            "controller_api_key": TRAINER_KEY,
            "completion_callback_url": f"{self.trainer.url}/callbacks/completion",
            "grader_callback_url": f"{self.trainer.url}/callbacks/grader",
        }

    async def post(self, path: str, body: dict[str, Any]) -> int | None:
        try:
            async with self.session.post(self.server.url + path, json=body, headers=self.headers) as reply:
                await reply.read()
                return reply.status
        except aiohttp.ClientError:
            return None

    def missing(self) -> list[tuple[str, str]]:
        kinds = {"/v1/rollout/init": ("completed",), "/rollout": ("completion", "grader")}
        wanted = [(rollout_id, kind) for rollout_id, path in self.accepted.items() for kind in kinds[path]]
        return [key for key in wanted if key not in self.trainer.taken]


async def test_every_accepted_rollout_ends_once_across_faults_and_a_restart(tmp_path: Path) -> None:
    trainer, server = Trainer(seed=7), Server(tmp_path)
    runner = await trainer.start()
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            drive = Drive(session, server, trainer)
            first = [asyncio.create_task(drive.one(index)) for index in range(COUNT // 2)]
            await asyncio.gather(*first)
            await wait_for(lambda: len(trainer.taken) > COUNT // 4, 60, lambda: f"only {len(trainer.taken)} ended")
            # Rollouts run and results wait; the trainer goes away and the server is told to stop.
            trainer.down = True
            second = [asyncio.create_task(drive.one(index)) for index in range(COUNT // 2, COUNT)]
            await asyncio.sleep(0.3)
            await server.stop()
            spooled = list((tmp_path / "data").rglob("server-*/*.json"))
            assert spooled, "nothing was spooled: the test does not test the restart"
            trainer.down = False
            await server.start()
            await asyncio.wait_for(asyncio.gather(*second), 60)
            await wait_for(lambda: not drive.missing(), 120, lambda: f"missing {drive.missing()[:5]}")
    finally:
        await server.stop()
        await runner.cleanup()

    assert trainer.faults > 50
    assert len(drive.accepted) == COUNT
    doubled = {key: bodies for key, bodies in trainer.taken.items() if len(bodies) != 1}
    assert doubled == {}
    by_mood: dict[str, set[str]] = defaultdict(set)
    for (rollout_id, kind), bodies in trainer.taken.items():
        if kind == "completed":
            by_mood[MOODS[int(rollout_id[5:]) % len(MOODS)]].add(orjson.loads(next(iter(bodies)))["status"])
    assert "COMPLETED" in by_mood["fine"]
    assert by_mood["crash"] == by_mood["hang"] == by_mood["odd"] == by_mood["nan"] == {"ERROR"}
    # What is still spooled was taken, but its acknowledgement was lost: it would be sent again, byte for byte.
    known = set().union(*trainer.taken.values())
    for file in (tmp_path / "data").rglob("server-*/*.json"):
        assert orjson.loads(file.read_bytes())["body"].encode() in known

    traces = list((tmp_path / "traces").rglob("*.jsonl"))
    assert len(traces) >= COUNT / 2
    for file in [*traces, tmp_path / "server.log"]:
        text = file.read_text()
        for secret in (TRAINER_KEY, ENV_SECRET, SERVER_KEY):
            assert secret not in text, file


async def wait_for(condition: Any, within: float, what: Any) -> None:
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.05)
