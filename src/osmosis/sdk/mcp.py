from __future__ import annotations

import asyncio
import importlib
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from osmosis.base.installation import extra_command
from osmosis.errors import LoadError, OsmosisError
from osmosis.records.protocol.v02 import OpenAIFunctionParametersSchema, OpenAIFunctionSchema, OpenAIFunctionToolSchema
from osmosis.records.run.rollout import Message
from osmosis.sdk.agent_loop import RolloutContext
from osmosis.sdk.classify import describe
from osmosis.sdk.tools import ToolLoop, create_tool_result, execute_tool_calls, get_tool_call_info
from osmosis.sdk.types import ToolExecutionError, ToolServerLost

if TYPE_CHECKING:
    from fastmcp import Client


logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
PING_TIMEOUT_S = 5.0


class McpTools:
    """A connection to an MCP server. `async with McpTools("./mcp") as tools:`"""

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        environ: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.source = str(source)
        self.schemas: list[OpenAIFunctionToolSchema] = []
        self._environ = environ
        self._timeout_s = timeout_s
        self._client: Client[Any] | None = None
        self._log: IO[str] | None = None

    async def __aenter__(self) -> McpTools:
        with suppress(Exception):  # `_open` says what is missing
            await asyncio.to_thread(importlib.import_module, "fastmcp.client")  # takes seconds, of the event loop else
        client = self._open()
        try:
            await asyncio.wait_for(client.__aenter__(), START_TIMEOUT_S)
            self._client = client
            self.schemas = [_schema(tool) for tool in await client.list_tools()]
        except Exception as exc:
            await self._stop(client)
            raise self._start_error(exc) from exc
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._stop(self._client)

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Return the tool's result as text; raise `ToolExecutionError`, or `ToolServerLost` without a server."""
        if self._client is None:
            raise RuntimeError("the MCP server is not connected: use `async with McpTools(...) as tools:`")
        try:
            result = await self._client.call_tool(name, dict(arguments), raise_on_error=False, timeout=self._timeout_s)
        except Exception as exc:
            if await self._has_ended():
                raise ToolServerLost(f"the MCP server {self.source} stopped answering: {describe(exc)}") from exc
            raise ToolExecutionError(f"{name}: {describe(exc)}", tool_name=name) from exc
        text = _text(result)
        if getattr(result, "is_error", False):
            raise ToolExecutionError(text or f"{name} failed", tool_name=name)
        return text

    async def run_calls(
        self, calls: Sequence[Mapping[str, object]], ctx: RolloutContext | None = None
    ) -> list[Message]:
        """Run an assistant message's tool calls in parallel; return a `tool` message for each, errors included."""
        lost: ToolServerLost | None = None

        async def answer(call: Mapping[str, object]) -> Message:
            nonlocal lost
            try:
                call_id, name, arguments = get_tool_call_info(call)
                return create_tool_result(call_id, await self.call(name, arguments))
            except ToolServerLost as exc:
                lost = exc
                raise

        results = await execute_tool_calls(calls, answer, timeout_s=self._timeout_s, ctx=ctx)
        if lost is not None:
            raise lost
        return results

    async def _has_ended(self) -> bool:
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
                f"MCP tools need fastmcp, and importing it failed: {exc}", hint=extra_command("mcp")
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

    def _start_error(self, exc: Exception) -> OsmosisError:
        if isinstance(exc, OsmosisError):
            return exc
        reason = (
            f"did not start within {START_TIMEOUT_S:g} s" if isinstance(exc, asyncio.TimeoutError) else describe(exc)
        )
        output, hint = "", "check that it runs, and the URL with its path, often /mcp"
        if self._log is not None:
            self._log.seek(0)
            lines = [line for line in self._log.read().splitlines() if line.strip()]
            output, hint = "\n".join(lines[-12:]), "start it by itself to see the whole error"
        return LoadError(f"the MCP server {self.source} cannot be used: {output or reason}", hint=hint)


@asynccontextmanager
async def mcp_agent(
    source: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> AsyncIterator[ToolLoop]:
    async with McpTools(source, environ=environ, timeout_s=timeout_s) as tools:
        yield ToolLoop(name="mcp", schemas=tools.schemas, call_tools=tools.run_calls)


def _schema(tool: Any) -> OpenAIFunctionToolSchema:
    schema = getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None) or {}
    properties = schema.get("properties")
    trimmed = {key: value for key, value in schema.items() if key != "title"}
    if isinstance(properties, dict):
        trimmed["properties"] = {
            name: {k: v for k, v in sub.items() if k != "title"} if isinstance(sub, dict) else sub
            for name, sub in properties.items()
        }
    return OpenAIFunctionToolSchema(
        function=OpenAIFunctionSchema(
            name=tool.name,
            description=tool.description or "",
            parameters=OpenAIFunctionParametersSchema.model_validate(trimmed),
        )
    )


def _text(result: object) -> str:
    blocks = getattr(result, "content", None) or []
    texts = [block.text for block in blocks if getattr(block, "type", "") == "text"]
    if texts:
        return "\n".join(texts)
    structured = getattr(result, "structured_content", None)
    if structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(f"[{getattr(block, 'type', 'content')}]" for block in blocks)


ENTRY_FILES = ("main.py", "server.py", "mcp_server.py", "app.py", "__init__.py")
BOOT = "import sys; sys.path[:] = [p for p in sys.path if p]; from osmosis.sdk.mcp import main; main(sys.argv[1])"
"""Run with `python -c`: the current folder leaves the path before anything is imported."""


class _Stdout(io.TextIOBase):
    """Standard output where `print` goes to stderr and `buffer` is the protocol's stream."""

    def __init__(self, protocol: io.BufferedWriter) -> None:
        self.buffer = protocol

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def main(source: str) -> None:
    protocol = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = _Stdout(protocol)
    try:
        server = find_server(Path(source))
    except LookupError as exc:
        sys.stderr.write(f"{exc}\n")
        raise SystemExit(1) from None
    except Exception as exc:  # noqa: BLE001 - the border of this process: the folder's code may raise anything
        sys.stderr.write(f"{_location_of(exc, Path(source))}{type(exc).__name__}: {exc}\n")
        raise SystemExit(1) from None
    server.run(transport="stdio", show_banner=False)


def _location_of(exc: Exception, source: Path) -> str:
    folder = str(source if source.is_dir() else source.parent)
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if frame.filename.startswith(folder)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def find_server(source: Path) -> Any:
    from fastmcp import FastMCP

    folder = source if source.is_dir() else source.parent
    files = [source] if source.is_file() else [folder / name for name in ENTRY_FILES if (folder / name).is_file()]
    sys.path.insert(0, str(folder))
    try:
        for file in files or sorted(folder.glob("*.py")):
            server = _server_in(_load(file), FastMCP)
            if server is not None:
                return server
        inside = str(folder.resolve()) + os.sep
        for module in list(sys.modules.values()):
            if str(getattr(module, "__file__", None) or "").startswith(inside):
                server = _server_in(module, FastMCP)
                if server is not None:
                    return server
    finally:
        # Behind the installed packages from here on: what libraries import lazily is theirs, what tools import
        # lazily is still found.
        sys.path.remove(str(folder))
        sys.path.append(str(folder))
    raise LookupError(f"{source} defines no FastMCP server: write `mcp = FastMCP(...)` in {ENTRY_FILES[0]}")


def _load(file: Path) -> ModuleType:
    name = file.stem if file.stem not in sys.modules else f"_osmosis_mcp_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _server_in(module: ModuleType, kind: type) -> Any:
    named = [getattr(module, name, None) for name in ("mcp", "server", "app")]
    return next((value for value in [*named, *list(vars(module).values())] if isinstance(value, kind)), None)
