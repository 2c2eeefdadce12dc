"""Tools of an MCP server as tools of an agent: a folder with a FastMCP server, a file, or a URL.

A folder is served by a process of its own, so nothing in it can shadow anything here; only FastMCP's public client
is used. A tool that fails is an error result; a server that does not start is one error that says why.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from osmosis.base.json_types import JsonObject
from osmosis.errors import LoadError, OsmosisError
from osmosis.records.rollout import Message
from osmosis.records.tool_schema import OpenAIFunctionParametersSchema, OpenAIFunctionSchema, OpenAIFunctionToolSchema

from .agent_loop import RolloutContext
from .classify import describe
from .exceptions import ToolExecutionError, ToolServerLost
from .mcp_host import BOOT
from .tool_loop import ToolLoop
from .tools import create_tool_result, execute_tool_calls, get_tool_call_info

if TYPE_CHECKING:
    from fastmcp import Client

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
PING_TIMEOUT_S = 5.0


class McpTools:
    """A connection to an MCP server. `async with McpTools("./mcp") as tools:`

    `source` is a folder or file with a FastMCP server, or an http(s) URL. `environ` is what the server's process
    gets. `timeout_s` bounds one tool call.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        environ: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.source = str(source)
        self.schemas: list[OpenAIFunctionToolSchema] = []
        """The server's tools, once connected."""
        self._environ = environ
        self._timeout_s = timeout_s
        self._client: Client[Any] | None = None
        self._log: IO[str] | None = None

    async def __aenter__(self) -> McpTools:
        client = self._open()
        try:
            await asyncio.wait_for(client.__aenter__(), START_TIMEOUT_S)
            self._client = client
            self.schemas = [_schema(tool) for tool in await client.list_tools()]
        except Exception as exc:
            await self._stop(client)
            raise self._refused(exc) from exc
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._stop(self._client)

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """The tool's result as text; `ToolExecutionError` carries what the tool said went wrong, `ToolServerLost` that
        there is no server any more."""
        if self._client is None:
            raise RuntimeError("the MCP server is not connected: use `async with McpTools(...) as tools:`")
        try:
            result = await self._client.call_tool(name, dict(arguments), raise_on_error=False, timeout=self._timeout_s)
        except Exception as exc:
            if await self._gone():
                raise ToolServerLost(f"the MCP server {self.source} stopped answering: {describe(exc)}") from exc
            raise ToolExecutionError(f"{name}: {describe(exc)}", tool_name=name) from exc
        text = _text(result)
        if getattr(result, "is_error", False):
            raise ToolExecutionError(text or f"{name} failed", tool_name=name)
        return text

    async def run_calls(
        self, calls: Sequence[Mapping[str, object]], ctx: RolloutContext | None = None
    ) -> list[Message]:
        """An assistant message's tool calls, in parallel; one `tool` message each, errors included. `ToolServerLost`
        when there is no server any more."""
        lost: ToolServerLost | None = None

        async def one(call: Mapping[str, object]) -> Message:
            nonlocal lost
            started = time.monotonic()
            try:
                call_id, name, arguments = get_tool_call_info(call)
                return create_tool_result(call_id, await self.call(name, arguments))
            except ToolServerLost as exc:
                lost = exc
                raise
            finally:
                if ctx is not None:
                    ctx.record_tool_call(latency_ms=(time.monotonic() - started) * 1000)

        results = await execute_tool_calls(calls, one, timeout_s=self._timeout_s)
        if lost is not None:
            raise lost
        return results

    async def _gone(self) -> bool:
        """Whether the server does not even answer a ping."""
        if self._client is None:
            return True
        try:
            await asyncio.wait_for(self._client.ping(), PING_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - any error means that it did not answer
            return True
        return False

    def _open(self) -> Client[Any]:
        try:
            from fastmcp import Client
            from fastmcp.client.transports import StdioTransport
        except ImportError as exc:
            raise LoadError(
                f"MCP tools need fastmcp, and importing it failed: {exc}", hint="pip install 'osmosis-ai[mcp]'"
            ) from exc
        if self.source.startswith(("http://", "https://")):
            return Client(self.source)
        path = Path(self.source).expanduser().resolve()
        if not path.exists():
            raise LoadError(f"no MCP folder or file at {path}", hint="give a folder with main.py, or a URL")
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - lives as long as the server
        environ = dict(os.environ if self._environ is None else self._environ)
        transport = StdioTransport(
            sys.executable,
            ["-c", BOOT, str(path)],
            env=environ,
            cwd=str(path.parent if path.is_dir() else path.parent.parent),
            keep_alive=False,
            log_file=self._log,
        )
        return Client(transport)

    async def _stop(self, client: Client[Any]) -> None:
        self._client = None
        try:
            await client.close()
        except Exception as exc:  # noqa: BLE001 - the server is gone or going; there is nothing left to save
            logger.debug("closing %s: %s", self.source, describe(exc))

    def _refused(self, exc: Exception) -> OsmosisError:
        if isinstance(exc, OsmosisError):
            return exc
        why = f"did not start within {START_TIMEOUT_S:g} s" if isinstance(exc, asyncio.TimeoutError) else describe(exc)
        said = ""
        if self._log is not None:
            self._log.seek(0)
            lines = [line for line in self._log.read().splitlines() if line.strip()]
            said = "\n".join(lines[-12:])
        hint = "check that it runs, and the URL with its path, often /mcp"
        if self._log is not None:
            hint = "start it by itself to see the whole error"
        return LoadError(f"the MCP server {self.source} cannot be used: {said or why}", hint=hint)


@asynccontextmanager
async def mcp_agent(
    source: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> AsyncIterator[ToolLoop]:
    """An agent loop over the tools of an MCP server, connected inside the block."""
    async with McpTools(source, environ=environ, timeout_s=timeout_s) as tools:
        yield ToolLoop(name="mcp", schemas=tools.schemas, call_tools=tools.run_calls)


def _schema(tool: Any) -> OpenAIFunctionToolSchema:
    schema = getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None) or {}
    return OpenAIFunctionToolSchema(
        function=OpenAIFunctionSchema(
            name=tool.name,
            description=tool.description or "",
            parameters=OpenAIFunctionParametersSchema.model_validate(_untitled(schema)),
        )
    )


def _untitled(schema: Mapping[str, object]) -> JsonObject:
    properties = schema.get("properties")
    trimmed = {key: value for key, value in schema.items() if key != "title"}
    if isinstance(properties, dict):
        trimmed["properties"] = {
            name: {k: v for k, v in sub.items() if k != "title"} if isinstance(sub, dict) else sub
            for name, sub in properties.items()
        }
    return trimmed


def _text(result: object) -> str:
    blocks = getattr(result, "content", None) or []
    texts = [block.text for block in blocks if getattr(block, "type", "") == "text"]
    if texts:
        return "\n".join(texts)
    structured = getattr(result, "structured_content", None)
    if structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(f"[{getattr(block, 'type', 'content')}]" for block in blocks)
