"""The Agent Client Protocol, version 1 (agentclientprotocol.com): JSON-RPC with a program, a message a line, on its
stdin and stdout. The program gets one session and one prompt. It works in its sandbox with tools of its own: whatever
it asks to do there is allowed, and an editor's files and terminals are declared absent."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from osmosis._version import __version__
from osmosis.base.jsonable import JsonObject
from osmosis.errors import ValidationError
from osmosis.sandbox.session import Session

VERSION = 1
SERVERS_FILE = ".mcp.json"
FINISH_REASONS = {"max_tokens": "length", "max_turn_requests": "max_turns"}
"""Stop reasons in the words of rollouts; `refusal` and `cancelled` are the same in both."""
UNATTENDED = ("bypassPermissions", "agent-full-access", "full-access", "yolo", "auto-approve")
"""Modes in which a program neither asks a second model what it may do nor starts a sandbox inside ours: Claude Code's,
Codex's by its two adapters, those of Gemini CLI and Qwen Code, and Vibe's."""
_METHOD_NOT_FOUND = -32601


class AcpError(Exception):
    """The program answered a request with an error, or did not answer."""


@dataclass
class AcpClient:
    """The client of a program that runs; `answer` is what it said so far."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pieces: list[str] = field(default_factory=list)
    _last_id: int = 0

    @property
    def answer(self) -> str:
        return "".join(self.pieces).strip()

    async def prompt(self, text: str, folder: str, servers: list[JsonObject]) -> str:
        """Return the reason for which the program stopped; raise `AcpError`."""
        absent = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        client = {"name": "osmosis", "version": __version__}
        about = await self._ask("initialize", protocolVersion=VERSION, clientCapabilities=absent, clientInfo=client)
        if about.get("protocolVersion") != VERSION:
            raise AcpError(f"it speaks version {about.get('protocolVersion')} of the protocol, not {VERSION}")
        session = await self._ask("session/new", cwd=folder, mcpServers=servers)
        number, modes = session.get("sessionId"), (session.get("modes") or {}).get("availableModes") or []
        if mode := next((mode["id"] for mode in modes if mode.get("id") in UNATTENDED), None):
            await self._ask("session/set_mode", sessionId=number, modeId=mode)
        prompt = [{"type": "text", "text": text}]
        end = await self._ask("session/prompt", sessionId=number, prompt=prompt)
        return str(end.get("stopReason"))

    async def _ask(self, method: str, **params: object) -> JsonObject:
        """Send a request; until its answer comes, take updates and answer the program's own requests."""
        self._last_id += 1
        await self._send({"id": self._last_id, "method": method, "params": params})
        while True:
            message = await self._read(method)
            if "method" in message:
                await self._take(message)
            elif message.get("id") == self._last_id:
                if error := message.get("error"):
                    raise AcpError(f"{method}: {_describe(error)}")
                result = message.get("result")
                return result if isinstance(result, dict) else {}

    async def _send(self, message: JsonObject) -> None:
        self.writer.write(orjson.dumps({"jsonrpc": "2.0", **message}) + b"\n")
        try:
            await self.writer.drain()
        except OSError:
            pass  # it has ended: the next read says so

    async def _read(self, method: str) -> JsonObject:
        while True:
            try:
                line = await self.reader.readline()
            except ValueError:
                continue  # a line over the reader's limit, which is an update
            if not line:
                raise AcpError(f"{method}: the program ended without an answer")
            try:
                message: object = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # programs print banners and logs here, too
            if isinstance(message, dict):
                return message

    async def _take(self, message: JsonObject) -> None:
        params = message.get("params")
        if not isinstance(params, dict):
            params = {}
        if message["method"] == "session/update":
            self._take_update(params.get("update") or {})
        elif "id" in message:
            answer: JsonObject = {"error": {"code": _METHOD_NOT_FOUND, "message": "this client has no such method"}}
            if message["method"] == "session/request_permission":
                answer = {"result": {"outcome": _allow(params.get("options") or [])}}
            await self._send({"id": message["id"], **answer})

    def _take_update(self, update: JsonObject) -> None:
        kind, content = update.get("sessionUpdate"), update.get("content")
        if kind == "agent_message_chunk" and isinstance(content, dict):
            self.pieces.append(str(content.get("text", "")))
        elif kind == "tool_call":
            self.pieces.append("\n")


def read_servers(*folders: Session) -> list[JsonObject]:
    """Return the MCP servers of each folder's `.mcp.json` in the protocol's words; a later folder's win. Raise
    `ValidationError` for a file that is not one of MCP servers."""
    servers: dict[str, JsonObject] = {}
    for folder in folders:
        if not (folder.folder / SERVERS_FILE).exists():
            continue
        try:
            table = orjson.loads(folder.read(SERVERS_FILE))["mcpServers"]
            servers |= {name: _server(name, server) for name, server in table.items()}
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as problem:
            hint = '{"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}'
            raise ValidationError(f"{SERVERS_FILE} has no table of MCP servers: {problem!r}", hint=hint) from problem
    return list(servers.values())


def _server(name: str, server: Mapping[str, object]) -> JsonObject:
    if "url" in server:
        headers = _pairs(server.get("headers"))
        return {"type": server.get("type", "http"), "name": name, "url": server["url"], "headers": headers}
    environ = _pairs(server.get("env"))
    return {"name": name, "command": server["command"], "args": server.get("args", []), "env": environ}


def _pairs(table: object) -> list[JsonObject]:
    return [{"name": key, "value": value} for key, value in table.items()] if isinstance(table, Mapping) else []


def _allow(options: list[JsonObject]) -> JsonObject:
    """Choose what allows most; an agent that offers nothing of the kind is told no."""
    for kind in ("allow_always", "allow_once"):
        for option in options:
            if option.get("kind") == kind:
                return {"outcome": "selected", "optionId": option.get("optionId")}
    return {"outcome": "cancelled"}


def _describe(error: object) -> str:
    if not isinstance(error, dict):
        return str(error)
    details = error.get("data")
    return f"{error.get('message')}{f' ({details})' if details else ''}"
