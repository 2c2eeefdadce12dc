"""MCP servers as tools: a folder that cannot start, a server over HTTP, tools that fail."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from osmosis.errors import LoadError
from osmosis.sdk.exceptions import ToolExecutionError
from osmosis.sdk.mcp import McpTools
from osmosis.serve.drive.process import free_port
from osmosis.testing.scripted import call

pytestmark = pytest.mark.flow

SERVER = """
import asyncio
from fastmcp import FastMCP
mcp = FastMCP("t")

@mcp.tool
async def add(a: int, b: int = 2) -> int:
    "Add."
    return a + b

@mcp.tool
async def hang() -> str:
    "Never."
    await asyncio.sleep(60)

@mcp.tool
def boom() -> str:
    "Fails."
    raise ValueError("no luck")

@mcp.tool
def shape() -> dict:
    "An object."
    return {"a": [1, 2]}

if __name__ == "__main__":
    import sys
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
"""


async def test_calls_results_and_failures(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SERVER)
    async with McpTools(tmp_path, timeout_s=1.0) as tools:
        assert [one.function.name for one in tools.schemas] == ["add", "hang", "boom", "shape"]
        assert tools.schemas[0].function.parameters.required == ["a"]
        assert await tools.call("add", {"a": 1}) == "3"
        assert '"a"' in await tools.call("shape", {})
        with pytest.raises(ToolExecutionError, match="no luck"):
            await tools.call("boom", {})
        calls = [call("add", '{"a": 4, "b": 5}', "c1"), call("hang", "{}", "c2"), call("none", "{}", "c3")]
        results = await tools.run_calls(calls)
    assert results[0] == {"role": "tool", "content": "9", "tool_call_id": "c1"}
    assert results[1]["content"].startswith("Error: ")
    assert "none" in results[2]["content"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main.py": "import nothing_like_this"}, "main.py:1: ModuleNotFoundError"),
        ({"main.py": "x = 1"}, "defines no FastMCP server"),
        ({"main.py": "def f(:"}, "SyntaxError"),
        ({}, "no MCP folder"),
    ],
)
async def test_servers_that_cannot_start_say_why(tmp_path: Path, files: dict[str, str], words: str) -> None:
    folder = tmp_path / "tools"
    for name, text in files.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(LoadError, match=words):
        async with McpTools(folder):
            pass


async def test_a_server_over_http(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(SERVER)
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "served.py"), str(port))
    url = f"http://127.0.0.1:{port}/mcp"
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(600):
                assert process.returncode is None
                try:
                    async with session.get(url):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        async with McpTools(url) as tools:
            assert await tools.call("add", {"a": 2}) == "4"
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)
    with pytest.raises(LoadError, match="cannot be used"):
        async with McpTools(url):
            pass
