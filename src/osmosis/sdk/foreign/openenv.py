"""`openenv:URL?size=100&seed=0`, or `openenv:FOLDER` with an openenv.yaml, which is then served here. A rollout is a
session: `reset` with the row's seed, an action for each turn. The environment's MCP tools are the model's, else its
action: one text is the answer, any other the tool `step`. The reward is the sum of the steps' (`reward=last`: the
last); `turns` limits the answers (20), `prompt` says what to do."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryFile

import aiohttp
import httpx
import yaml

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_http
from osmosis.errors import LoadError
from osmosis.records.run.rollout import Message
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.foreign import ForeignEnvironment, ForeignWorkflow, KeepReward
from osmosis.sdk.types import AgentWorkflowConfig, RolloutSample
from osmosis.sdk.workflow import AgentWorkflowContext

START_S = 180.0
WAIT_S = 0.2  # Between two tries to open a session: most environments take one at a time
LARGEST_BYTES = 100 * 2**20
_SERVE = """
import os, sys, threading, uvicorn
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
uvicorn.run(sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""  # ends with the process that holds its input
_servers: list[subprocess.Popen[bytes]] = []


class EnvironmentConfig(AgentWorkflowConfig):
    url: str
    action: JsonObject  # JSON schema of an action
    turns: int
    reward: str


class Session:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, action: JsonObject) -> None:
        self._socket = socket
        self._action = action
        self.rewards: list[float] = []
        self.is_done = False

    async def ask(self, kind: str, data: JsonObject) -> JsonObject:
        await self._socket.send_json({"type": kind, "data": data})
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError("the environment closed the session")
        answer: JsonObject = message.json()
        return answer

    async def observe(self, kind: str, data: JsonObject) -> str:
        """Reset or step; return what the model sees of it: an observation, or why its action is none."""
        answer = await self.ask(kind, data)
        seen = answer["data"]
        if answer["type"] == "error":
            if seen["code"] == "VALIDATION_ERROR" and kind == "step":
                return json.dumps({"error": seen["message"], "details": seen.get("errors")})
            raise RuntimeError(f"the environment failed ({seen['code']}): {seen['message']}")
        reward = seen["reward"] if seen.get("reward") is not None else seen["observation"].get("reward")
        if reward is not None and kind == "step":
            self.rewards.append(float(reward))
        self.is_done = bool(seen.get("done") or seen["observation"].get("done"))
        hidden = ("metadata", "reward", "done")
        fields = {
            name: value for name, value in seen["observation"].items() if name not in hidden and value is not None
        }
        only = next(iter(fields.values()), "") if len(fields) == 1 else fields
        return only if isinstance(only, str) else json.dumps(only)

    async def list_tools(self) -> list[JsonObject]:
        answer = await self.ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        listed = ((answer["data"].get("result") or {}).get("tools")) or []
        if not listed and self.text_field is None:
            listed = [{"name": "step", "description": self._action.get("description"), "input_schema": self._action}]
        return [_tool(tool) for tool in listed]

    @property
    def text_field(self) -> str | None:
        fields = {name: field for name, field in self._action["properties"].items() if name != "metadata"}
        return next(iter(fields)) if [field.get("type") for field in fields.values()] == ["string"] else None

    async def act(self, call: JsonObject) -> Message:
        function = call["function"]
        try:
            arguments = dict(json.loads(function["arguments"] or "{}"))
        except (TypeError, ValueError) as error:
            seen = f"the arguments are no JSON object: {error}"
        else:
            called = {"type": "call_tool", "tool_name": function["name"], "arguments": arguments}
            seen = await self.observe("step", arguments if function["name"] == "step" else called)
        return {"role": "tool", "tool_call_id": call["id"], "content": seen}


class EnvironmentWorkflow(ForeignWorkflow[EnvironmentConfig]):
    async def run(self, ctx: AgentWorkflowContext[EnvironmentConfig]) -> None:
        async with ctx.chat() as chat, _open_session(self.config) as session:
            tools = await session.list_tools()
            *earlier, last = ctx.prompt
            seen = await session.observe("reset", {"seed": ctx.metadata["seed"]})
            messages = [*earlier, {**last, "content": f"{last['content']}\n\n{seen}".strip()}]
            self.messages, self.rewards = messages, session.rewards
            ctx.rollout.set_sample_source(self)
            for _ in range(self.config.turns):
                answer = await chat.complete(messages, tools=tools or None)
                messages.append(answer.message)
                if tools:
                    for call in answer.tool_calls:
                        messages.append(await session.act(call))
                else:
                    seen = await session.observe("step", {str(session.text_field): answer.content})
                    messages.append({"role": "user", "content": seen})
                if session.is_done or (tools and not answer.tool_calls):
                    break

    async def get_sample(self) -> RolloutSample:
        rewards = self.rewards[-1:] if self.config.reward == "last" else self.rewards
        is_answered = self.messages[-1]["role"] != "user"
        messages = self.messages if is_answered else self.messages[:-1]  # nobody answers what came after the last turn
        return RolloutSample(messages=messages, reward=sum(rewards) if rewards else None)


def open_environment(name: str, options: JsonObject, base_dir: Path) -> ForeignEnvironment:
    size, seed, prompt = (options.pop(key, default) for key, default in (("size", 100), ("seed", 0), ("prompt", "")))
    turns, reward = options.pop("turns", 20), options.pop("reward", "sum")
    if options or reward not in ("sum", "last"):
        problem = f"openenv:{name} has no option {next(iter(options), f'reward={reward}')!r}"
        raise LoadError(problem, hint="its options: size, seed, turns, prompt, reward=sum or last")
    url = name.rstrip("/") if is_http(name) else _serve(base_dir / name)
    about, action = _get(f"{url}/metadata"), _get(f"{url}/schema")["action"]
    title = str(about["name"])
    config = EnvironmentConfig(name=title, url=url, action=action, turns=turns, reward=reward)
    words = prompt or about.get("readme_content") or about.get("description") or title
    rows = [
        {"id": f"{title}-{seed + number}", "user_prompt": words, "metadata": {"seed": seed + number}}
        for number in range(size)
    ]
    return ForeignEnvironment(LocalBackend(EnvironmentWorkflow, config, KeepReward), lambda: rows)


@contextlib.asynccontextmanager
async def _open_session(config: EnvironmentConfig) -> AsyncIterator[Session]:
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.ws_connect(f"{config.url}/ws", max_msg_size=LARGEST_BYTES) as socket:
                session = Session(socket, config.action)
                answer = await session.ask("state", {})
                if answer["data"].get("code") != "CAPACITY_REACHED":
                    yield session
                    await socket.send_json({"type": "close"})
                    return
            await asyncio.sleep(WAIT_S)


def _serve(folder: Path) -> str:
    manifest = folder / "openenv.yaml"
    if not manifest.is_file():
        hint = "openenv:FOLDER of an environment, or openenv:http://HOST:PORT"
        raise LoadError(f"{folder} has no openenv.yaml", hint=hint)
    app = yaml.safe_load(manifest.read_text(encoding="utf-8")).get("app") or "server.app:app"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words, errors = [sys.executable, "-c", _SERVE, app, str(port)], TemporaryFile("w+")  # noqa: SIM115 - the server's
    server = subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=errors, stderr=errors)
    _servers.append(server)  # whose input would end with it
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(LoadError):
            _get(f"{url}/health")
            return url
        time.sleep(WAIT_S)
    server.kill()
    errors.seek(0)
    last = (errors.read().strip().splitlines() or ["it did not answer"])[-1]
    raise LoadError(f"the environment of {folder} did not start: {last}", hint=f"cd {folder}; python -m uvicorn {app}")


def _get(url: str) -> JsonObject:
    try:
        body: JsonObject = httpx.get(url, timeout=10, follow_redirects=True).raise_for_status().json()
        return body
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise LoadError(
            f"{url} does not answer as an OpenEnv environment: {error}", hint="openenv:http://HOST:PORT"
        ) from error


def _tool(tool: JsonObject) -> JsonObject:
    schema = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"}
    properties = {key: field for key, field in schema.get("properties", {}).items() if key != "metadata"}
    parameters = {**schema, "properties": properties}
    head = {"name": tool["name"], "description": tool.get("description") or ""}
    return {"type": "function", "function": {**head, "parameters": parameters}}
