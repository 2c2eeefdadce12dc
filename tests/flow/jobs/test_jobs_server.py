"""The rollout server under supervision, alone: what it says when it does not come up, in bounded time."""

import os
import sys
from pathlib import Path

import pytest

from osmosis.base.processes import start_token
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import JobFailed, JobLog
from osmosis.jobs.server.supervisor import ServerCommand, ServerSupervisor
from osmosis.records.run.job import LogLine
from osmosis.records.run.rollout import Category
from support.waiting import until

HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("loading weights", child.pid, flush=True)
time.sleep(600)
"""


def server(folder: Path, text: str, lines: list[LogLine], *, health_timeout_s: float = 60.0) -> ServerSupervisor:
    (folder / "main.py").write_text(text)
    command = ServerCommand(
        [sys.executable, "main.py"], folder, dict(os.environ), "rollouts/m/main.py", health_timeout_s
    )
    return ServerSupervisor(command, JobLog(None, lines.append), Leftovers(folder))


async def test_a_server_that_never_answers_is_ended_with_its_children(tmp_path: Path) -> None:
    lines: list[LogLine] = []
    with pytest.raises(JobFailed) as caught:
        await server(tmp_path, HANGS, lines, health_timeout_s=1.5).start()
    failure = caught.value.failure
    assert failure.category is Category.TIMEOUT
    assert failure.message.startswith("rollouts/m/main.py: the rollout server did not answer")
    assert "loading weights" in failure.message
    child = int(lines[0].message.split()[-1])
    await until(lambda: start_token(child) is None, what="the end of the server's child")


async def test_a_crash_shows_its_last_line_and_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as caught:
        await server(tmp_path, "def load():\n    raise ValueError('no weights')\nload()\n", []).start()
    failure = caught.value.failure
    assert failure.category is Category.AGENT_ERROR
    assert failure.message.endswith("exit code 1 before it was healthy: ValueError: no weights")
    assert "line 2, in load" in str(failure.traceback)


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    command = ServerCommand(["/nonexistent/python", "main.py"], tmp_path, {}, "rollouts/m/main.py")
    with pytest.raises(JobFailed, match="/nonexistent/python cannot be started: No such file"):
        await ServerSupervisor(command, JobLog(), Leftovers(tmp_path)).start()


async def test_signals_and_exit_codes_pass_through(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="ended with signal 11 before"):
        await server(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", []).start()
    with pytest.raises(JobFailed, match="ended with exit code 7 before"):
        await server(tmp_path, "raise SystemExit(7)\n", []).start()


async def test_older_rollouts_find_their_port(tmp_path: Path) -> None:
    text = """
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(os.environ["ROLLOUT_PORT"])), Health).serve_forever()
"""
    running = server(tmp_path, text, [])
    assert (await running.start()).startswith("http://127.0.0.1:")
    await running.stop()
