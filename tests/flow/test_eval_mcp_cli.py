"""MCP servers as tools: a folder or a URL; one that is not there, cannot start, fails, or dies."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osmosis.engine.journal import Journal
from osmosis.errors import LoadError
from osmosis.sdk.mcp import McpTools
from osmosis.sdk.types import ToolExecutionError
from osmosis.serve.server_process import free_port
from osmosis.testing.scripted import call
from support.command_line import CommandRun, run_command
from support.endpoint import ModelEndpoint
from support.eval_project import write_rows
from support.programs import running_program
from support.waiting import until

pytest.importorskip("fastmcp")

SERVER = """
import asyncio, sys
from fastmcp import FastMCP

mcp = FastMCP("calculator")

@mcp.tool
async def multiply(a: float, b: float) -> float:
    "Multiply two numbers."
    if a == 3:
        raise ValueError("three is [bold]broken[/bold]")
    if a >= 6 and "stuck" in sys.argv:
        await asyncio.sleep(600)
    return a * b

if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
"""
SCORE = """
def asked(messages, ground_truth, metadata=None):
    results = [m["content"] for m in messages if m["role"] == "tool"]
    return 1.0 if results and float(results[0]) == float(ground_truth) else 0.0

def tried(messages, ground_truth, metadata=None):
    return 1.0 if any(m["role"] == "tool" for m in messages) else 0.0
"""


@contextmanager
def mcp_server(folder: Path, port: int, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "tools.py").write_text(SERVER)
    (folder / "mcp_score.py").write_text(SCORE)
    command = (sys.executable, "tools.py", str(port), *words)
    with running_program(*command, cwd=folder, url=f"http://127.0.0.1:{port}/mcp") as process:
        yield process


def evaluate(folder: Path, url: str, name: str, score: str, *words: str) -> CommandRun:
    line = ["eval", "--mcp", url, "-d", "d.jsonl", "--eval-fn", f"mcp_score:{score}", "--name", name, "--json"]
    return run_command(*line, *(words or ("--model", "offline/calculator")), cwd=folder)


def test_tools_over_http_and_one_that_fails(tmp_path: Path) -> None:
    write_rows(tmp_path / "d.jsonl", 6)
    port = free_port()
    with mcp_server(tmp_path, port):
        ran = evaluate(tmp_path, f"http://127.0.0.1:{port}/mcp", "r", "tried")
        assert ran.code == 0, ran.err
        summary = ran.json["data"]["summary"]
        assert (summary["completed_runs"], summary["failed"]) == (6, 0)
        assert summary["eval_fns"]["mcp_score:tried"]["mean"] == 1.0
        lines = {line["row_index"]: line for line in Journal(tmp_path / ".osmosis/runs/r").lines()}
        said = {row: [m["content"] for m in line["messages"] if m["role"] == "tool"] for row, line in lines.items()}
        assert [float(said[row][0]) for row in (0, 1, 2, 4, 5)] == [0, 7, 14, 28, 35]
        assert "three is [bold]broken[/bold]" in said[3][0]  # the model reads it: that is its work
        assert lines[3]["num_tool_calls"] == 1

        wrong = evaluate(tmp_path, f"http://127.0.0.1:{port}/nothing", "wrong", "tried")
        assert wrong.code == 1
        assert "cannot be used" in wrong.error["message"]
        assert "often /mcp" in wrong.error["details"]["hint"]


def test_a_server_that_is_not_there_costs_no_call_and_leaves_no_run(tmp_path: Path) -> None:
    write_rows(tmp_path / "d.jsonl", 2)
    (tmp_path / "mcp_score.py").write_text(SCORE)
    with ModelEndpoint() as endpoint:
        words = ("--model", "m", "--base-url", endpoint.url)
        down = evaluate(tmp_path, f"http://127.0.0.1:{free_port()}/mcp", "down", "tried", *words)
        assert down.code == 1
        assert "cannot be used" in down.error["message"]
        assert evaluate(tmp_path, "ftp://127.0.0.1/mcp", "down", "tried", *words).code == 2
        assert endpoint.requests == []
    assert not (tmp_path / ".osmosis/runs/down").exists()


def test_a_server_that_dies_is_no_wrong_answer_and_the_run_goes_on_later(tmp_path: Path) -> None:
    write_rows(tmp_path / "d.jsonl", 12)
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    journal = Journal(tmp_path / ".osmosis/runs/r")
    line = f"eval --mcp {url} -d d.jsonl --eval-fn mcp_score:tried --model offline/calculator --name r --json"
    with mcp_server(tmp_path, port, "stuck") as server:
        ran = subprocess.Popen(
            [sys.executable, "-m", "osmosis", *line.split()],
            cwd=tmp_path,
            env={"PATH": "", "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        asyncio.run(until(lambda: journal.exists and len(journal.finished()) == 6, within=60))
        server.kill()
        out, err = ran.communicate(timeout=60)
    assert ran.returncode == 1, err.decode()
    summary = json.loads(out)["data"]["summary"]
    assert "server_died" in summary["stopped"]
    assert summary["eval_fns"]["mcp_score:tried"]["scored"] == 6
    assert {line["failure"]["category"] for line in journal.lines() if line.get("failure")} == {"server_died"}

    with mcp_server(tmp_path, port):
        again = run_command("eval", "resume", "r", "--retry-failed", "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    summary = again.json["data"]["summary"]
    assert (summary["completed_runs"], summary["failed"], summary["coverage"]) == (12, 0, 1.0)


TOOLS = """
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
    (tmp_path / "main.py").write_text(TOOLS)
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
