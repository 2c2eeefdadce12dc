"""A small project to evaluate: an agent, a score function and rows; the same agent as a workflow, and as a server.

The texts are what a person would write. Modules are named by the caller: commands that run in one process share them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .programs import running_program

AGENT = """
from osmosis import RolloutAgentLoop

class Chat(RolloutAgentLoop):
    name = "chat"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)

agent = Chat()
"""
"""An agent loop of one turn, as `agent`."""

SCORE = """
def exact(solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str.rpartition("#### ")[2] == ground_truth else 0.0
"""
"""A score function, `exact`."""

ROLLOUT = """
from osmosis.sdk.backend import LocalBackend
from osmosis import AgentWorkflow, Grader

class Work(AgentWorkflow):
    async def run(self, ctx):
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            messages.append((await chat.complete(messages)).message)
        return messages

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"].endswith(f"#### {ctx.label}")))

backend = LocalBackend(Work, grader=Exact)
"""
"""A workflow and its grader behind one `backend`: the entrypoint of a rollout."""

SERVER = (
    ROLLOUT
    + """
import os, sys
import uvicorn
from osmosis.serve.server.app import create_rollout_server

app = create_rollout_server(backend, configure_logging=False, api_key=os.environ.get("SERVER_KEY"))
if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
)
"""`ROLLOUT` as a rollout server: `python server.py PORT`, with the key in SERVER_KEY."""


def write_project(folder: Path, *, agent: str, score: str, rows: int = 10) -> None:
    """`<agent>.py`, `<score>.py` and `d.jsonl` with so many multiplications."""
    (folder / f"{agent}.py").write_text(AGENT)
    (folder / f"{score}.py").write_text(SCORE)
    write_rows(folder / "d.jsonl", rows)


def write_rows(path: Path, count: int) -> None:
    """So many multiplications, as rows."""
    rows = [{"user_prompt": f"What is {i} * 7?", "ground_truth": str(i * 7)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@contextmanager
def rollout_server(
    folder: Path, port: int, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`SERVER` as a process of its own on this port, healthy; killed at the end when it still runs."""
    (folder / "rollout_server.py").write_text(SERVER)
    words = (sys.executable, "rollout_server.py", str(port))
    url = f"http://127.0.0.1:{port}/health"
    with running_program(*words, cwd=folder, url=url, environ={**os.environ, **(environ or {})}) as process:
        yield process
