"""Many rollouts through a server process whose trainer fails, hangs up and goes away, across a restart.

Every accepted rollout must end in exactly one terminal result, whatever fails, and no trace may hold a secret.
"""

import asyncio
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from osmosis.serve.server_process import free_port
from support.programs import LOG, OSMOSIS, running_program
from support.waiting import until

pytestmark = pytest.mark.slow

COUNT = 120
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
        messages.append((await ctx.chat(messages)).message)
        return {"not": "a result"} if mood == "odd" else ctx.complete(messages, reward=1.0)

agent_loop = Loop()
"""
MOODS = ["fine"] * 12 + ["slow"] * 3 + ["crash", "hang", "odd"]


class Trainer:
    """Answers, and misbehaves by a seeded dice; keeps every terminal message it has taken."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.down = False
        self.taken: dict[tuple[str, str], set[bytes]] = defaultdict(set)
        self.faults = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        roll = self.dice.random()
        if self.down or roll < 0.18:
            self.faults += 1
            if not self.down and roll < 0.04:
                request.transport.abort()
            return web.Response(status=429 if roll < 0.1 else 503, headers={"Retry-After": "0.05"})
        if request.path.endswith("/chat/completions"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
            return web.json_response({"id": "c", "created": 1, "choices": [choice], "usage": {}})
        assert request.headers["Authorization"] == f"Bearer {TRAINER_KEY}"
        self.taken[orjson.loads(body)["rollout_id"], request.path.rpartition("/")[2]].add(body)
        if self.dice.random() < 0.05:  # taken, but the answer is lost
            request.transport.abort()
        return web.json_response({"status": "ok"})


def init_message(index: int, trainer: str) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Path, the terminal messages that it asks for, and body: half speak 0.2, half the callbacks of 0.3."""
    messages = [{"role": "user", "content": f"row {index}"}]
    body = {"rollout_id": f"soak-{index:04d}", "metadata": {"mood": MOODS[index % len(MOODS)]}}
    if index % 2:
        own = {"server_url": trainer, "api_key": TRAINER_KEY, "messages": messages, "completion_params": {}}
        return "/v1/rollout/init", ("completed",), {**body, **own}
    callbacks = {f"{kind}_callback_url": f"{trainer}/callbacks/{kind}" for kind in ("completion", "grader")}
    own = {"initial_messages": messages, "chat_completions_url": f"{trainer}/v1", "controller_api_key": TRAINER_KEY}
    return "/rollout", ("completion", "grader"), {**body, **own, **callbacks}


async def start_rollout(session: aiohttp.ClientSession, url: str, trainer: str, index: int) -> None:
    """Send the init until it is accepted, every other one twice: a repeated one must not start a second run."""
    path, _, body = init_message(index, trainer)
    accepted = 0
    while accepted <= index % 4 // 2:
        try:
            async with session.post(url + path, json=body) as reply:
                assert reply.status in (202, 429, 503), await reply.text()
                accepted += reply.status == 202
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.02)


@pytest.mark.soak
async def test_every_accepted_rollout_ends_once_across_faults_and_a_restart(tmp_path: Path) -> None:
    trainer, port, trainer_port = Trainer(seed=7), free_port(), free_port()
    (tmp_path / "agent.py").write_text(AGENT)
    environ = {
        **os.environ,
        "OSMOSIS_DATA_DIR": str(tmp_path / "data"),
        "PROVIDER_API_KEY": ENV_SECRET,
        "OSMOSIS_ROLLOUT_CLIENT_RETRY_BASE_DELAY": "0.1",
        "OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES": "8",
        "OSMOSIS_ROLLOUT_SERVER_REQUEST_TIMEOUT_SECONDS": "10",
    }
    flags = ("-H", "127.0.0.1", "-p", str(port), "--skip-register", "--api-key", SERVER_KEY, "--log", "traces")
    command = (*OSMOSIS, "serve", "-m", "agent:agent_loop", *flags, "--drain", "1")
    url, trainer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{trainer_port}"
    app = web.Application()
    app.router.add_post("/{path:.+}", trainer.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", trainer_port, backlog=1024).start()
    expected = {
        (body["rollout_id"], kind)
        for _, kinds, body in (init_message(index, "") for index in range(COUNT))
        for kind in kinds
    }
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {SERVER_KEY}"}) as session:
            with running_program(*command, cwd=tmp_path, url=f"{url}/health", environ=environ) as server:
                await asyncio.gather(*(start_rollout(session, url, trainer_url, i) for i in range(COUNT // 2)))
                await until(lambda: len(trainer.taken) > COUNT // 4, within=60)
                # Rollouts run and results wait; the trainer goes away and the server is told to stop.
                trainer.down = True
                rest = [
                    asyncio.create_task(start_rollout(session, url, trainer_url, i)) for i in range(COUNT // 2, COUNT)
                ]
                await asyncio.sleep(0.3)
                server.terminate()
                await until(lambda: server.poll() is not None, within=60)
            assert list((tmp_path / "data").rglob("server-*/*.json")), "nothing waits: this tests no restart"
            trainer.down = False
            with running_program(*command, cwd=tmp_path, url=f"{url}/health", environ=environ) as server:
                await asyncio.wait_for(asyncio.gather(*rest), 60)
                hanging = {f"soak-{i:04d}" for i in range(COUNT) if MOODS[i % len(MOODS)] == "hang"}
                owed = {key for key in expected if key[0] not in hanging}
                await until(lambda: owed <= trainer.taken.keys(), within=120)
                server.terminate()
                await until(lambda: server.poll() is not None, within=60)
            await until(lambda: expected <= trainer.taken.keys() or spooled(tmp_path), within=10)
    finally:
        await runner.cleanup()
    assert trainer.faults > 25
    assert {key for key, bodies in trainer.taken.items() if len(bodies) != 1} == set()
    assert expected - trainer.taken.keys() <= spooled(tmp_path), "each is delivered, or waits for the next start"
    traces = list((tmp_path / "traces").rglob("*.jsonl"))
    assert len(traces) >= COUNT / 2
    for file in [*traces, tmp_path / LOG]:
        for secret in (TRAINER_KEY, ENV_SECRET, SERVER_KEY):
            assert secret not in file.read_text(), file


def spooled(folder: Path) -> set[tuple[str, str]]:
    """What waits for the next start, by rollout and message."""
    waiting = [orjson.loads(file.read_bytes()) for file in (folder / "data").rglob("server-*/*.json")]
    return {(orjson.loads(post["body"])["rollout_id"], post["url"].rpartition("/")[2]) for post in waiting}
