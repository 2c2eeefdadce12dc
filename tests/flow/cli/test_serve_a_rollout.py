"""`osmosis serve` in a workspace: a rollout by name, or the only one; no module path."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from osmosis.testing.command_line import run_command

pytestmark = pytest.mark.flow
WORKFLOW = """
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowOutput


class Echo(AgentWorkflow):
    async def run(self, ctx):
        return AgentWorkflowOutput(messages=[])
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    assert run_command("init", "--here", "--no-git", "--no-platform", cwd=tmp_path).code == 0
    folder = tmp_path / "rollouts" / "echo"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(WORKFLOW)
    return tmp_path


@contextlib.contextmanager
def serving(cwd: Path, *words: str) -> Iterator[str]:
    """The URL of a server that answers; its process group ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "osmosis", "serve", *words, "--local", "-H", "127.0.0.1", "-p", str(port)]
    log = cwd / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=cwd, stdout=output, stderr=output, start_new_session=True)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/health")
                break
            time.sleep(0.1)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.mark.parametrize("words", [(), ("echo",)])
def test_a_rollout_is_served_by_its_name_or_as_the_only_one(workspace: Path, words: tuple[str, ...]) -> None:
    with serving(workspace, *words) as url:
        assert httpx.get(f"{url}/health").json()["status"] == "ok"


def test_what_cannot_be_served_is_said_with_what_to_type(workspace: Path, tmp_path_factory) -> None:
    unknown = run_command("serve", "ecko", "--json", cwd=workspace)
    assert (unknown.code, unknown.error["details"]["hint"]) == (1, "did you mean echo?")
    both = run_command("serve", "echo", "-m", "a:b", "--json", cwd=workspace)
    assert "cannot be used together" in both.error["message"]
    outside = run_command("serve", "--json", cwd=tmp_path_factory.mktemp("outside"))
    assert "osmosis serve ROLLOUT" in outside.error["details"]["hint"]
