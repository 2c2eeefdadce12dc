"""A served agent and a platform, as processes: registered, seen as healthy, taken out at the end; no key anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis.serve.drive.process import free_port
from osmosis.testing.platform_process import PlatformProcess, until

pytestmark = pytest.mark.flow

KEY = "server-key-that-must-not-leak"
AGENT = """
    from osmosis.sdk.agent_loop import RolloutAgentLoop

    class Loop(RolloutAgentLoop):
        name = "calculator"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            done = await ctx.chat(ctx.request.messages)
            return ctx.complete([*ctx.request.messages, done.message])

    agent_loop = Loop()
"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[PlatformProcess]:
    found = PlatformProcess(tmp_path / "data")
    found.start()
    try:
        found.login()
        yield found
    finally:
        found.terminate()


class Served:
    """`osmosis serve` in a folder of its own, logged in at the platform; what it writes goes to one file."""

    def __init__(self, folder: Path, platform: PlatformProcess, *options: str, port: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text(textwrap.dedent(AGENT))
        self.output = folder / "output.log"
        self.port = port or free_port()
        url = str(platform.http.base_url).rstrip("/")
        token = platform.http.headers["authorization"].partition(" ")[2]
        command = ["serve", "-m", "agent:agent_loop", "-p", str(self.port), "--log", "traces"]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "osmosis", "--plain", *command, *options],
                cwd=folder,
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")},
                    "HOME": str(folder),
                    "OSMOSIS_PLATFORM_URL": url,
                    "OSMOSIS_TOKEN": token,
                    "OSMOSIS_TOKEN_PLATFORM_URL": url,
                },
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

    def lives(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return True


def listed(platform: PlatformProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = platform.json("GET", "rollout-servers")["rollout_servers"]
    return found


def page(platform: PlatformProcess) -> str:
    answer = platform.http.get("/demo/repository")
    assert answer.status_code == 200
    return answer.text


def test_a_served_agent_is_seen_as_healthy_and_leaves_when_it_ends(tmp_path: Path, platform: PlatformProcess) -> None:
    with Served(tmp_path / "agent", platform, "--api-key", KEY, "-H", "127.0.0.1") as served:
        until(lambda: served.lives() and listed(platform), "the server is registered")
        [row] = listed(platform)
        assert (row["agent_loop_name"], row["host"], row["port"]) == ("calculator", "127.0.0.1", served.port)
        assert (row["status"], row["scope"], row["has_api_key"]) == ("healthy", "user", True)
        shown = page(platform)
        assert f"127.0.0.1:{served.port}" in shown
        assert 'class="badge healthy"' in shown
        until(
            lambda: f"registered with {platform.http.base_url}".rstrip("/") in served.output.read_text(), "it says so"
        )
        beat = platform.json("POST", f"rollout-server/{row['id']}/heartbeat")
        assert beat == {"id": row["id"], "status": "healthy"}
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) in (0, -signal.SIGTERM)
    assert listed(platform) == []
    assert f"127.0.0.1:{served.port}" not in page(platform)
    assert KEY not in f"{row} {shown}"
    for path in (*(tmp_path / "data").rglob("*"), *(tmp_path / "agent").rglob("*")):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_a_server_that_starts_after_a_kill_takes_the_place_of_the_killed_one(
    tmp_path: Path, platform: PlatformProcess
) -> None:
    with Served(tmp_path / "agent", platform, "--api-key", KEY) as served:  # on all addresses, as by default
        until(lambda: served.lives() and listed(platform), "the server is registered")
        [before] = listed(platform)
    assert [row["id"] for row in listed(platform)] == [before["id"]]  # killed: it could not say goodbye
    with Served(tmp_path / "agent", platform, "--api-key", "another-key", port=served.port) as served:
        until(lambda: served.lives() and listed(platform)[0]["id"] != before["id"], "the next one is registered")
        [after] = listed(platform)
    assert (after["host"], after["port"], after["status"]) == ("127.0.0.1", served.port, "healthy")
