"""`osmosis eval --mcp URL`: tools of an MCP server in a process of its own; one that is not there, fails, or dies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osmosis.engine.journal import Journal
from osmosis.serve.drive.process import free_port
from osmosis.testing.command_line import CommandRun, run_command
from osmosis.testing.endpoint import ModelEndpoint
from osmosis.testing.eval_project import write_rows
from osmosis.testing.waiting import until

pytestmark = pytest.mark.flow
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
    process = subprocess.Popen([sys.executable, "tools.py", str(port), *words], cwd=folder, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/mcp", timeout=5).close()
                break
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


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
