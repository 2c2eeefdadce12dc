"""`osmosis platform`: a real background process, started once, found again, stopped in order."""

import os
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from osmosis.cli.platform import process as local_platform
from osmosis.cli.platform.process import StartPlan
from osmosis.client.credentials import CredentialStore
from osmosis.serve.server_process import free_port
from support.command_line import CommandRun, run_command
from support.platform_process import until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    local_platform.stop(tmp_path / ".home" / "data", force=True)


def test_it_starts_once_is_found_and_stops(home: Path) -> None:
    port = str(free_port())
    first = run_command("platform", "start", "--port", port, "--json", cwd=home)
    assert first.code == 0, first.err
    assert first.json["resource"]["started"] is True
    assert first.json["resource"]["url"] == f"http://127.0.0.1:{port}"
    again = run_command("platform", "start", "--json", cwd=home)
    assert again.json["resource"]["started"] is False
    assert again.json["resource"]["pid"] == first.json["resource"]["pid"]
    assert run_command("platform", "start", "--port", port, "--json", cwd=home).code == 0
    elsewhere = run_command("platform", "start", "--port", str(free_port()), "--json", cwd=home)
    assert (elsewhere.code, f"already running at http://127.0.0.1:{port}" in elsewhere.error["message"]) == (1, True)
    status = run_command("platform", "status", "--json", cwd=home)
    assert (status.code, status.json["data"]["answers"]) == (0, True)
    assert run_command("platform", "logs", "-n", "5", cwd=home).code == 0
    assert run_command("platform", "stop", "--json", cwd=home).json["resource"]["stopped"] is True
    gone = run_command("platform", "status", "--json", cwd=home)
    assert (gone.code, gone.json["data"]["running"]) == (1, False)
    assert run_command("platform", "stop", "--json", cwd=home).json["resource"] == {"stopped": False}
    back = run_command("platform", "start", "--json", cwd=home)
    assert back.json["resource"]["port"] == int(port), "logins and remotes name the port"


def test_once_it_answers_it_logs_to_its_own_file_alone(home: Path) -> None:
    assert run_command("platform", "start", "--json", cwd=home).code == 0
    assert run_command("login", "--json", cwd=home).code == 0
    assert run_command("workspace", "create", "w", "--json", cwd=home).code == 0
    running = local_platform.find(home / ".home" / "data")
    store = CredentialStore({"OSMOSIS_CONFIG_DIR": str(home / ".home" / "config")}).find(running.url)
    with sqlite3.connect(home / ".home" / "data" / "platform.db") as broken:
        broken.execute("DROP TABLE rollout_servers")
    headers = {"Authorization": f"Bearer {store.token}", "X-Osmosis-Workspace": "w"}
    answer = httpx.get(f"{running.url}/api/cli/rollout-servers", headers=headers)
    assert answer.status_code == 500, answer.text
    logs = home / ".home" / "data" / "logs"
    assert "/api/cli/rollout-servers" in (logs / "platform.log").read_text()
    assert "/api/cli/rollout-servers" not in (logs / "start.log").read_text()


def test_what_keeps_it_from_starting_is_told(home: Path) -> None:
    data = home / ".home" / "data"
    data.mkdir(parents=True)
    (data / "platform.db").write_text("this is no database, and long enough to be looked at" * 10)
    refused = run_command("platform", "start", "--json", cwd=home)
    assert refused.code == 1
    assert "not a database" in refused.error["message"]


def test_a_taken_port_is_an_error_when_asked_for_and_avoided_otherwise(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        refused = run_command("platform", "start", "--port", str(taken), "--json", cwd=home)
        assert (refused.code, refused.error["code"]) == (1, "CONFLICT")
        data = home / ".home" / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "port").write_text(f"{taken}\n")  # where it was last time
        started = run_command("platform", "start", cwd=home)
        assert started.code == 0, started.err
        assert f"port {taken} is taken by another program; using " in started.err


def test_two_starts_at_once_are_one_platform(home: Path) -> None:
    data = home / "data"
    found: list[tuple[int, bool]] = []

    def start() -> None:
        running, now = local_platform.start(StartPlan(data, port=0), {"PATH": os.environ["PATH"]})
        found.append((running.pid, now))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    try:
        assert len({pid for pid, _ in found}) == 1
        assert sorted(now for _, now in found) == [False, True]
    finally:
        local_platform.stop(data)


def test_a_killed_platform_is_seen_as_gone_and_starts_again(home: Path) -> None:
    first = run_command("platform", "start", "--port", "0", "--json", cwd=home).json["resource"]
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: run_command("platform", "status", cwd=home).code, "it is seen as gone")
    again = run_command("platform", "start", "--json", cwd=home).json["resource"]
    assert again["started"] is True
    assert again["pid"] != first["pid"]


def test_a_platform_that_cannot_start_says_why_and_leaves_none_behind(home: Path) -> None:
    failed: CommandRun = run_command("platform", "start", "--database-url", "nonsense://x", "--json", cwd=home)
    assert failed.code == 1
    assert "exited during start-up" in failed.error["message"]
    assert run_command("platform", "status", cwd=home).code == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_full_is_said(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        done = run_command(
            "platform", "start", "--port", "0", "--json", cwd=tmp_path, environ={"OSMOSIS_DATA_DIR": str(small)}
        )
        assert done.code == 1
        assert done.error["message"] == f"the platform could not start: there is no space left for its data in {small}"
        assert done.error["details"]["hint"] == f"df -h {small}"
    finally:
        local_platform.stop(small, force=True)
        subprocess.run(["umount", str(small)], check=True)
