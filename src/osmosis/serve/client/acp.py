"""The Agent Client Protocol, version 1 (agentclientprotocol.com): JSON-RPC with a program, a message a line, on its
stdin and stdout. The program gets one session and one prompt. It works in its sandbox with tools of its own: whatever
it asks to do there is allowed, and an editor's files and terminals are declared absent."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from osmosis._version import __version__
from osmosis.base.jsonable import JsonObject
from osmosis.errors import ValidationError
from osmosis.sandbox.session import Session

SERVERS_FILE = ".mcp.json"
FINISH_REASONS: Mapping[object, str | None] = {
    "end_turn": None,
    "max_tokens": "length",
    "max_turn_requests": "max_turns",
}
"""Stop reasons in the words of rollouts, where the model's own does not do; others are the same in both."""
UNATTENDED = ("bypassPermissions", "agent-full-access", "full-access", "yolo", "auto-approve")
_HELLO: JsonObject = {
    "protocolVersion": 1,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "osmosis", "version": __version__},
}
_NO_METHOD: JsonObject = {"error": {"code": -32601, "message": "this client has no such method"}}


class AcpError(Exception):
    """The program answered a request with an error, or did not answer."""


@dataclass
class AcpClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pieces: list[str] = field(default_factory=list)
    _last_id: int = 0

    async def prompt(self, text: str, folder: str, servers: list[JsonObject]) -> str:
        spoken = (await self._ask("initialize", _HELLO)).get("protocolVersion")
        if spoken != 1:
            raise AcpError(f"it speaks version {spoken} of the protocol, not 1")
        session = await self._ask("session/new", {"cwd": folder, "mcpServers": servers})
        params, modes = {"sessionId": session.get("sessionId")}, (session.get("modes") or {}).get("availableModes")
        for mode in [mode["id"] for mode in modes or () if mode.get("id") in UNATTENDED][:1]:
            await self._ask("session/set_mode", {**params, "modeId": mode})
        end = await self._ask("session/prompt", {**params, "prompt": [{"type": "text", "text": text}]})
        return str(end.get("stopReason"))

    async def _ask(self, method: str, params: JsonObject) -> JsonObject:
        self._last_id += 1
        await self._send({"id": self._last_id, "method": method, "params": params})
        async for message in self._messages():
            if "method" in message:
                await self._take(message["method"], message.get("id"), message.get("params") or {})
            elif error := message.get("error"):
                raise AcpError(f"{method}: {error.get('message')} {error.get('data') or ''}".strip())
            elif message.get("id") == self._last_id:
                return message.get("result") or {}
        raise AcpError(f"{method}: the program ended without an answer")

    async def _send(self, message: JsonObject) -> None:
        self.writer.write(orjson.dumps({"jsonrpc": "2.0", **message}) + b"\n")
        with suppress(OSError):  # it has ended: the next read says so
            await self.writer.drain()

    async def _messages(self) -> AsyncIterator[JsonObject]:
        line = b"\n"
        while line:
            with suppress(ValueError):
                line = await self.reader.readline()
                if isinstance(message := orjson.loads(line), dict):
                    yield message

    async def _take(self, method: str, number: object, params: JsonObject) -> None:
        update = params.get("update") or {}
        if method == "session/request_permission":
            chosen = sorted(params.get("options") or (), key=lambda option: option.get("kind", ""))
            allowed = [option["optionId"] for option in chosen if option.get("kind", "").startswith("allow")]
            outcome = {"outcome": "selected", "optionId": allowed[0]} if allowed else {"outcome": "cancelled"}
            await self._send({"id": number, "result": {"outcome": outcome}})
        elif number is not None:
            await self._send({"id": number, **_NO_METHOD})
        elif update.get("sessionUpdate") == "agent_message_chunk":
            self.pieces.append(str(update["content"].get("text", "")))
        elif update.get("sessionUpdate") == "tool_call":
            self.pieces.append("\n")


def read_servers(*folders: Session) -> list[JsonObject]:
    """Return the MCP servers of each folder's `.mcp.json` in the protocol's words; a later folder's win. Raise
    `ValidationError` for a file that is not one of MCP servers."""
    servers: dict[str, JsonObject] = {}
    for folder in folders:
        if (folder.folder / SERVERS_FILE).exists():
            try:
                table = orjson.loads(folder.read(SERVERS_FILE))["mcpServers"]
                servers |= {name: _server(name, server) for name, server in table.items()}
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as problem:
                hint = '{"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}'
                raise ValidationError(
                    f"{SERVERS_FILE} has no table of MCP servers: {problem!r}", hint=hint
                ) from problem
    return list(servers.values())


def _server(name: str, server: JsonObject) -> JsonObject:
    key = "headers" if "url" in server else "env"
    pairs = [{"name": name, "value": value} for name, value in (server.get(key) or {}).items()]
    if "url" in server:
        return {"type": server.get("type", "http"), "name": name, "url": server["url"], key: pairs}
    return {"name": name, "command": server["command"], "args": server.get("args", []), key: pairs}
