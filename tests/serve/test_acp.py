"""Programs that speak the Agent Client Protocol: the official package is the agent, which checks what it is sent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.errors import ValidationError
from osmosis.records.run.plan import ProgramSpec
from osmosis.records.run.rollout import Rollout
from osmosis.sandbox import Level, probe

from .support import ScriptedModel
from .test_program_agent import run

pytest.importorskip("acp")

AGENT = """
import asyncio, json, os, pathlib, sys, urllib.request
import acp
from acp.schema import PermissionOption, SessionMode, SessionModeState, ToolCallUpdate

def ask(prompt):
    body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": prompt}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]

class Agent(acp.Agent):
    seen = {}

    def on_connect(self, client):
        self.client = client

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **_):
        self.seen["client"] = client_info.name
        self.seen["absent"] = not (client_capabilities.terminal or client_capabilities.fs.read_text_file)
        return acp.InitializeResponse(protocol_version=VERSION)

    async def new_session(self, cwd, mcp_servers=None, **_):
        self.seen["is_cwd"] = cwd == os.getcwd()
        self.seen["servers"] = [server.model_dump(by_alias=True, exclude_none=True) for server in mcp_servers]
        modes = SessionModeState(
            current_mode_id="ask", available_modes=[SessionMode(id=name, name=name) for name in ("ask", "yolo")]
        )
        return acp.NewSessionResponse(session_id="s", modes=modes)

    async def set_session_mode(self, mode_id, session_id, **_):
        self.seen["mode"] = mode_id
        return acp.SetSessionModeResponse()

    async def prompt(self, prompt, session_id, **_):
        await self.client.session_update(session_id, acp.start_tool_call("t", "write made.txt"))
        options = [PermissionOption(option_id=kind, name=kind, kind=kind) for kind in ("reject_once", "allow_once")]
        asked = await self.client.request_permission(session_id, ToolCallUpdate(tool_call_id="t"), options)
        self.seen["allowed"] = asked.outcome.option_id
        try:
            await self.client.read_text_file(session_id, "/etc/passwd")
        except acp.RequestError as problem:
            self.seen["fs"] = problem.code
        pathlib.Path("made.txt").write_text(json.dumps(self.seen))
        print("a banner on stdout", flush=True)
        text = await asyncio.to_thread(ask, prompt[0].text)
        for piece in (text[:1], text[1:]):
            await self.client.session_update(session_id, acp.update_agent_message_text(piece))
        return acp.PromptResponse(stop_reason=STOP)

VERSION, STOP = 1, "end_turn"
asyncio.run(acp.run_agent(Agent()))
"""
SERVERS = (
    '{"mcpServers": {"files": {"command": "files", "args": ["-v"], "env": {"A": "b"}}, "web": {"url": "http://x"}}}'
)
CONFINED = pytest.param(
    "auto", marks=pytest.mark.skipif(probe().level < Level.NAMESPACES, reason="no sandbox of level 1 here")
)


async def run_agent(base: Path, *, agent: str = AGENT, **options: Any) -> Rollout:
    command = f"acp:{sys.executable} agent.py"
    return await run(base, command, {"files": {"agent.py": agent}}, model=ScriptedModel(), **options)


@pytest.mark.parametrize("kind", ["none", CONFINED])
async def test_program_is_prompted_over_the_protocol(tmp_path: Path, kind: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".mcp.json").write_text(SERVERS)
    rollout = await run_agent(tmp_path, kind=kind, program=ProgramSpec(home="home"))
    result = rollout.info["command"]
    assert (rollout.failure, result.get("error")) == (None, None), result
    assert (result["stop_reason"], result["exit_code"], result["stdout"]) == ("end_turn", 0, "42")
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"]
    servers = [
        {"name": "files", "command": "files", "args": ["-v"], "env": [{"name": "A", "value": "b"}]},
        {"type": "http", "name": "web", "url": "http://x", "headers": []},
    ]
    assert json.loads(result["files"]["made.txt"]) == {
        "client": "osmosis", "absent": True, "is_cwd": True, "servers": servers, "mode": "yolo",
        "allowed": "allow_once", "fs": -32601,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stop", "reason"), [("max_tokens", "length"), ("max_turn_requests", "max_turns"), ("refusal", "refusal")]
)
async def test_reason_to_stop_is_that_of_the_rollout(tmp_path: Path, stop: str, reason: str) -> None:
    rollout = await run_agent(tmp_path, agent=AGENT.replace('"end_turn"', f'"{stop}"'))
    assert (rollout.failure, rollout.finish_reason) == (None, reason)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (AGENT.replace("VERSION, STOP = 1", "VERSION, STOP = 2"), "it speaks version 2 of the protocol, not 1"),
        (AGENT.replace('self.seen["is_cwd"]', "raise acp.RequestError.auth_required() #"), "session/new: Auth"),
        ("print('hello')", "initialize: the program ended without an answer"),
    ],
)
async def test_program_that_takes_no_prompt_is_a_failure(tmp_path: Path, agent: str, words: str) -> None:
    rollout = await run_agent(tmp_path, agent=agent)
    assert rollout.failure is not None
    assert words in rollout.failure.message


async def test_what_cannot_be_prompted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="mini-swe-agent does not speak") as refused:
        await run(tmp_path, "acp:mini-swe-agent", {})
    assert "acp:opencode" in str(refused.value.hint)
    with pytest.raises(ValidationError, match="no table of MCP servers"):
        await run(tmp_path, "acp:cat", {"files": {".mcp.json": "[]"}})
