"""A rollout server as a process: healthy, crashing at start, silent, dying, drained."""

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import aiohttp
import psutil
import pytest

from osmosis.engine.task import Task
from osmosis.llm import open_model
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rows import Row
from osmosis.records.sandbox import EndedBy
from osmosis.sandbox import Limits, Policy
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.server_process import RolloutServerProcess, ServerStartError
from support.attempts import run_attempt
from support.waiting import until

MAIN = """
    import asyncio, os, sys
    import uvicorn
    from osmosis.sdk.backend import LocalBackend
    from osmosis.sdk.workflow import Grader
    from osmosis.sdk.workflow import AgentWorkflow
    from osmosis.serve.server.app import create_rollout_server

    class Slow(AgentWorkflow):
        async def run(self, ctx):
            await asyncio.sleep(float(ctx.metadata.get("nap", 0)))
            async with ctx.chat() as chat:
                done = await chat.complete(ctx.prompt)
            return [*ctx.prompt, done.message]

    class Exact(Grader):
        async def grade(self, ctx):
            ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))

    app = create_rollout_server(LocalBackend(Slow, grader=Exact))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="warning")
"""


def process(folder: Path, source: str, *, timeout_s: float = 60.0) -> tuple[RolloutServerProcess, list[str]]:
    (folder / "main.py").write_text(textwrap.dedent(source))
    lines: list[str] = []
    environ = {**os.environ, "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(folder / "artifacts")}
    server = RolloutServerProcess(
        [sys.executable, "main.py"], folder, environ, log=lines.append, health_timeout_s=timeout_s
    )
    return server, lines


PRINTS = """
    import os, threading, http.server
    def prints():
        while True:
            print("x" * 99)
    threading.Thread(target=prints, daemon=True).start()
    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def log_message(self, *words): pass
    http.server.HTTPServer(("127.0.0.1", int(os.environ["_OSMOSIS_ROLLOUT_PORT"])), Healthy).serve_forever()
"""


async def test_a_server_that_prints_for_ever_fills_no_log_and_is_ended(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(textwrap.dedent(PRINTS))
    lines: list[str] = []
    limits = Limits(output_bytes=1_000_000)
    command = [sys.executable, "main.py"]
    server = RolloutServerProcess(command, tmp_path, os.environ, log=lines.append, policy=Policy(limits=limits))
    try:
        await server.start()
        await asyncio.wait_for(server.wait_died(), 60)
    except ServerStartError:
        pass  # it printed that much before it was healthy
    finally:
        await server.stop()
    assert server.over_limit is EndedBy.OUTPUT
    assert sum(len(line) + 31 for line in lines) < 1_000_100, "as in a log, where each line has a time and a step"
    assert "the rest of its output is dropped" in lines[-1]
    assert "it printed more than 16000000 bytes" in server.last_output()


async def test_a_rollout_runs_and_a_killed_server_is_noticed(tmp_path: Path) -> None:
    model = open_model(ModelSpec(name="offline/echo", kind="offline"))
    plan = EvalPlan(name="t", agent="server:x", model=model.spec, dataset="d.jsonl")
    server, _ = process(tmp_path, MAIN)
    gate = ModelProxy(model)
    await gate.open()
    try:
        url = await server.start()
        async with served(ServerAt(url), gate, plan, died=server.wait_died) as agent:
            first = await run_attempt(agent, gate.model, plan, task("a", nap=0))
            assert first.failure is None, first.failure
            assert first.value("reward") == 1.0
            waiting = asyncio.create_task(run_attempt(agent, gate.model, plan, task("b", nap=600)))
            await asyncio.sleep(0)
            assert server.pid is not None
            below = psutil.Process(server.pid).children()
            assert below, "the server is kept by a process of ours"
            os.kill(server.pid, signal.SIGKILL)
            lost = await asyncio.wait_for(waiting, 30)
            assert lost.failure.category.value == "server_died"
            await until(lambda: not any(_alive(each.pid) for each in below), what="the end of the server itself")
    finally:
        await server.stop()
        await gate.close()


@pytest.mark.parametrize("generation", ["0.3", "0.4"])
async def test_sigterm_lets_a_running_rollout_finish(tmp_path: Path, generation: str) -> None:
    model = open_model(ModelSpec(name="offline/echo", kind="offline"))
    plan = EvalPlan(name="t", agent="server:x", model=model.spec, dataset="d.jsonl")
    server, _ = process(tmp_path, MAIN)
    gate = ModelProxy(model)
    await gate.open()
    try:
        url = await server.start()
        async with served(ServerAt(url, generation=generation), gate, plan) as agent:
            waiting = asyncio.create_task(run_attempt(agent, gate.model, plan, task("a", nap=1.0)))
            await _active(url)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGTERM)
            rollout = await asyncio.wait_for(waiting, 30)
            assert rollout.failure is None, rollout.failure
            assert rollout.value("reward") == 1.0
        await asyncio.wait_for(server.wait_died(), 30)
    finally:
        await server.stop()
        await gate.close()


async def _active(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/health") as reply:
                if (await reply.json())["lifecycle"]["active_rollouts"]:
                    return
            await asyncio.sleep(0.01)


def task(name: str, *, nap: float) -> Task:
    data = {"user_prompt": "hello", "ground_truth": "hello", "nap": nap}
    return Task(row=Row(index=0, data=data), attempt=0, rollout_id=f"r-{name}")


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
