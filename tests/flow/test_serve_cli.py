"""`osmosis serve` as a process: serving, traces, reload, registration, bad input."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from osmosis.engine.task import Task
from osmosis.llm import open_model
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rows import Row
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.server_process import free_port
from osmosis.testing.mock_trainer import RolloutCompletionTracker, create_mock_trainer_app
from support import eval_project
from support.attempts import run_attempt
from support.command_line import run_command
from support.platform_process import PlatformProcess, until as wait_until
from support.programs import LOG, OSMOSIS, running_program
from support.server import running_app
from support.waiting import until

AGENT = """
    from osmosis_ai.rollout import RolloutAgentLoop

    class Loop(RolloutAgentLoop):
        name = "first"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            done = await ctx.chat(ctx.request.messages)
            ctx.log_event("said", content=done.content, env=__import__("os").environ.get("MY_API_KEY"))
            return ctx.complete([*ctx.request.messages, done.message])

    agent_loop = Loop()
"""


class Serving:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.output: list[str] = []

    async def health(self, within: float = 60.0, **want: Any) -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            deadline = asyncio.get_running_loop().time() + within
            while asyncio.get_running_loop().time() < deadline:
                try:
                    async with session.get(f"{self.url}/health") as reply:
                        body: dict[str, Any] = await reply.json()
                        if all(body.get(key) == value for key, value in want.items()):
                            return body
                except aiohttp.ClientError:
                    assert self.process.returncode is None, "".join(self.output)
                await asyncio.sleep(0.05)
        raise AssertionError(f"no health like {want}: {''.join(self.output)}")

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 30)


@asynccontextmanager
async def serving(folder: Path, *words: str, source: str = AGENT, **env: str) -> AsyncIterator[Serving]:
    (folder / "agent.py").write_text(textwrap.dedent(source))
    port = free_port()
    environ = {
        **os.environ,
        "OSMOSIS_CONFIG_DIR": str(folder / "config"),
        "OSMOSIS_DATA_DIR": str(folder / "data"),
        **env,
    }
    command = ["-m", "osmosis", "serve", "-m", "agent:agent_loop", "-H", "127.0.0.1", "-p", str(port), *words]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=folder,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    server = Serving(process, port)

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            server.output.append(line.decode())

    reader = asyncio.create_task(read())
    try:
        yield server
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await reader


async def test_a_rollout_is_served_traced_and_reported(tmp_path: Path) -> None:
    tracker = RolloutCompletionTracker()
    async with (
        running_app(create_mock_trainer_app(tracker)) as trainer,
        serving(tmp_path, "--local", "--log", "traces", MY_API_KEY="sk-env-secret-value") as server,
        aiohttp.ClientSession() as session,
    ):
        assert (await server.health())["agent_loop"] == "first"
        messages = [{"role": "user", "content": "hi"}]
        body = {"rollout_id": "r1", "server_url": trainer, "messages": messages, "completion_params": {}}
        async with session.post(f"{server.url}/v1/rollout/init", json=body) as reply:
            assert reply.status == 202
        await until(lambda: tracker.responses)
        assert await server.end() == 0
    assert tracker.responses[0]["status"] == "COMPLETED"
    [trace] = (tmp_path / "traces").glob("*/r1.jsonl")
    assert json.loads(trace.read_text())["event"] == "said"
    assert "sk-env-secret-value" not in trace.read_text()


async def test_a_key_is_generated_printed_and_wanted(tmp_path: Path) -> None:
    async with serving(tmp_path, "--skip-register", "--json") as server, aiohttp.ClientSession() as session:
        await server.health()
        row = next(json.loads(line) for line in server.output if line.startswith("{"))
        assert row["api_key"].startswith("osm_rollout_")
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {row['api_key']}"}, 200)):
            async with session.get(f"{server.url}/platform/health", headers=headers) as reply:
                assert reply.status == status


async def test_a_change_of_the_file_reloads_the_agent(tmp_path: Path) -> None:
    async with serving(tmp_path, "--local", "--reload") as server:
        await server.health(agent_loop="first")
        (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT.replace('"first"', '"second"')))
        await server.health(agent_loop="second")


async def test_the_server_is_registered_again_until_it_works_and_taken_out(tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    platform = FastAPI()

    @platform.post("/api/cli/rollout-server/register")
    async def register(request: Request) -> JSONResponse:
        seen.append(("register", await request.json()))
        if len(seen) == 1:
            return JSONResponse({"error": "not now"}, status_code=503)
        assert request.headers["Authorization"] == "Bearer tok-1"
        return JSONResponse({"id": "rs-1", "status": "healthy", "health_check_result": None})

    @platform.delete("/api/cli/rollout-server/{server_id}")
    async def remove(server_id: str) -> JSONResponse:
        seen.append(("delete", {"id": server_id}))
        return JSONResponse({})

    async with running_app(platform) as url:
        env = {"OSMOSIS_PLATFORM_URL": url, "OSMOSIS_TOKEN": "tok-1", "OSMOSIS_TOKEN_PLATFORM_URL": url}
        async with serving(tmp_path, "--api-key", "server-key-1", **env) as server:
            await until(lambda: len(seen) >= 2, within=60)
            await until(lambda: any("registered with" in line for line in server.output), within=10)
            await server.end()
    assert [what for what, _ in seen] == ["register", "register", "delete"]
    said = seen[1][1]
    assert (said["host"], said["agent_loop_name"], said["api_key"]) == ("127.0.0.1", "first", "server-key-1")
    assert seen[2][1] == {"id": "rs-1"}


WORKFLOW = """
    from osmosis.sdk.workflow import AgentWorkflow
    from osmosis.sdk.workflow import Grader

    class Flow(AgentWorkflow):
        async def run(self, ctx):
            async with ctx.chat() as chat:
                done = await chat.complete(ctx.prompt)
            return [*ctx.prompt, done.message]

    class Always(Grader):
        async def grade(self, ctx):
            ctx.set_reward(1.0)

    agent_loop = Flow
"""
APP = """
    from fastapi import FastAPI
    agent_loop = FastAPI()
    agent_loop.add_api_route("/health", lambda: {"status": "mine"})
"""


async def test_a_workflow_is_served_with_its_grader_key_and_traces(tmp_path: Path) -> None:
    model = open_model(ModelSpec(name="offline/echo", kind="offline"))
    plan = EvalPlan(name="t", agent="server:x", model=model.spec, dataset="d.jsonl")
    row = Row(index=0, data={"user_prompt": "hello", "ground_truth": "hello"})
    gate = ModelProxy(model)
    await gate.open()
    try:
        async with serving(tmp_path, "--api-key", "server-key-1", "--log", "traces", source=WORKFLOW) as server:
            await server.health()
            async with served(ServerAt(server.url, api_key="server-key-1"), gate, plan) as agent:
                rollout = await run_attempt(agent, gate.model, plan, Task(row=row, attempt=0, rollout_id="r1"))
            await server.end()
    finally:
        await gate.close()
    assert rollout.failure is None, rollout.failure
    assert rollout.value("reward") == 1.0
    [trace] = (tmp_path / "traces").glob("*/r1.jsonl")
    assert [json.loads(line)["event"] for line in trace.read_text().splitlines()] == [
        "rollout_accepted",
        "rollout_ended",
    ]


async def test_an_app_is_served_as_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, "--local", source=APP) as server:
        assert await server.health() == {"status": "mine"}


@pytest.mark.parametrize(
    ("words", "source", "expected"),
    [
        ([], AGENT, "not logged in"),
        (["--local", "--api-key", "k"], AGENT, "cannot be used with local mode"),
        (["--local", "--log-level", "loud"], AGENT, "--log-level"),
        (["--local", "--log", "/dev/null/x"], AGENT, "cannot write traces"),
        (["--local"], "import does_not_exist", "does_not_exist"),
        (["--local"], AGENT.replace("return []", "return None"), "GET_TOOLS_RETURNS_NONE"),
        (["--local"], "agent_loop = 7", "not an agent"),
    ],
)
async def test_bad_input_is_one_clear_error(tmp_path: Path, words: list[str], source: str, expected: str) -> None:
    async with serving(tmp_path, *words, source=source) as server:
        assert await asyncio.wait_for(server.process.wait(), 60) in (1, 2)
    text = "".join(server.output)
    assert expected in text
    assert "Traceback" not in text


async def test_a_taken_port_says_so(tmp_path: Path) -> None:
    async with running_app(FastAPI()) as url:
        port = url.rsplit(":", 1)[1]
        async with serving(tmp_path, "--local", "-p", port) as server:
            assert await asyncio.wait_for(server.process.wait(), 60) == 1
    assert "cannot listen on" in "".join(server.output)


ECHO = """
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowOutput


class Echo(AgentWorkflow):
    async def run(self, ctx):
        return AgentWorkflowOutput(messages=[])
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    assert run_command("init", "--here", "--no-git", "--no-platform", cwd=tmp_path).code == 0
    folder = tmp_path / "rollouts" / "echo"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(ECHO)
    return tmp_path


@contextlib.contextmanager
def served_here(cwd: Path, *words: str) -> Iterator[str]:
    """The URL of a server that answers."""
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    command = (*OSMOSIS, "serve", *words, "--local", "-H", "127.0.0.1", "-p", port)
    with running_program(*command, cwd=cwd, url=f"{url}/health"):
        yield url


@pytest.mark.parametrize("words", [(), ("echo",)])
def test_a_rollout_is_served_by_its_name_or_as_the_only_one(workspace: Path, words: tuple[str, ...]) -> None:
    with served_here(workspace, *words) as url:
        assert httpx.get(f"{url}/health").json()["status"] == "ok"


def test_what_cannot_be_served_is_said_with_what_to_type(workspace: Path, tmp_path_factory) -> None:
    unknown = run_command("serve", "ecko", "--json", cwd=workspace)
    assert (unknown.code, unknown.error["details"]["hint"]) == (1, "did you mean echo?")
    both = run_command("serve", "echo", "-m", "a:b", "--json", cwd=workspace)
    assert "cannot be used together" in both.error["message"]
    outside = run_command("serve", "--json", cwd=tmp_path_factory.mktemp("outside"))
    assert "osmosis serve ROLLOUT" in outside.error["details"]["hint"]


SECRET_KEY = "server-key-that-must-not-leak"


def test_a_served_agent_is_seen_as_healthy_and_leaves_when_it_ends(tmp_path: Path) -> None:
    platform = PlatformProcess(tmp_path / "data")
    platform.start()
    try:
        platform.login()
        check_registration(platform, tmp_path / "agent")
    finally:
        platform.terminate()


def check_registration(platform: PlatformProcess, folder: Path) -> None:
    folder.mkdir()
    (folder / "agent.py").write_text(eval_project.AGENT)
    port = free_port()
    words = (
        "serve",
        "-m",
        "agent:agent",
        "-p",
        str(port),
        "-H",
        "127.0.0.1",
        "--log",
        "traces",
        "--api-key",
        SECRET_KEY,
    )
    environ = {**os.environ, "HOME": str(folder), **platform.login_environ}
    url = f"http://127.0.0.1:{port}/health"
    with running_program(*OSMOSIS, "--plain", *words, cwd=folder, url=url, environ=environ) as server:
        wait_until(lambda: platform.json("GET", "rollout-servers")["rollout_servers"], "the server is registered")
        [row] = platform.json("GET", "rollout-servers")["rollout_servers"]
        assert (row["agent_loop_name"], row["host"], row["port"]) == ("chat", "127.0.0.1", port)
        assert (row["status"], row["scope"], row["has_api_key"]) == ("healthy", "user", True)
        page = platform.http.get("/demo/repository").text
        assert f"127.0.0.1:{port}" in page
        assert 'class="badge healthy"' in page
        wait_until(lambda: f"registered with {platform.url}" in (folder / LOG).read_text(), "it says so")
        beat = platform.json("POST", f"rollout-server/{row['id']}/heartbeat")
        assert beat == {"id": row["id"], "status": "healthy"}
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) in (0, -signal.SIGTERM)
    assert platform.json("GET", "rollout-servers")["rollout_servers"] == []
    assert f"127.0.0.1:{port}" not in platform.http.get("/demo/repository").text
    assert SECRET_KEY not in f"{row} {page}"
    for path in (*platform.data_dir.rglob("*"), *folder.rglob("*")):
        assert not path.is_file() or SECRET_KEY.encode() not in path.read_bytes(), path
