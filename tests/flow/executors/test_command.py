"""Any scheduler by three commands: task spooler, a real one, as the example has it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.platform_process import FAKE_JOB, PlatformProcess, until

from .remote_worker import SECRET, RemoteWorker, platform_without_worker, remote_worker

EXAMPLE = Path(__file__).parents[3] / "examples" / "executors" / "task-spooler.toml"
pytestmark = [
    pytest.mark.skipif(shutil.which("tsp") is None, reason="tsp missing: apt-get install task-spooler"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with platform_without_worker(tmp_path_factory.mktemp("platform")) as process:
        yield process


@pytest.fixture
def spooler(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Its own server, with one slot."""
    environ = {**os.environ, "TMPDIR": str(tmp_path), "TS_SOCKET": str(tmp_path / "tsp.socket")}
    yield environ
    subprocess.run(["tsp", "-K"], env=environ, check=False, timeout=30)


@pytest.fixture
def worker(platform: PlatformProcess, spooler: dict[str, str], tmp_path: Path) -> Iterator[RemoteWorker]:
    head, mark, rest = EXAMPLE.read_text().replace("poll_s = 2", "poll_s = 0.3").partition("[command]")
    command = f"job_command = {json.dumps(FAKE_JOB)}\n"
    config = f'{head}{command}{mark}{rest}env = ["TS_SOCKET"]\n'
    with remote_worker(platform, tmp_path / "spooler", config, spooler) as started:
        yield started


def test_a_run_goes_through_the_scheduler_which_learns_no_secret(
    platform: PlatformProcess, worker: RemoteWorker, spooler: dict[str, str], tmp_path: Path
) -> None:
    name = platform.submit("environ", secrets={"required": ["API_KEY"]})
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    logs = platform.logs(name)
    assert "secrets: API_KEY" in logs
    assert "OSMOSIS_WORKER_TOKEN" not in logs.split("environ: ")[1].splitlines()[0]
    shown = subprocess.run(["tsp", "-i"], env=spooler, capture_output=True, check=False, timeout=30).stdout
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "token"]
    assert any(b"ost_" in content for content in kept), "its script has the ticket"
    for content in [shown, *kept]:
        assert not [word for word in (SECRET, "osj_", worker.token) if word.encode() in content]


def test_a_job_waits_its_turn_and_is_found_again_by_a_worker_that_was_killed(
    platform: PlatformProcess, worker: RemoteWorker
) -> None:
    first, second = platform.submit("wait:1"), platform.submit()
    until(lambda: platform.rollouts(first) == [0], "the first works")
    until(lambda: "queued as job 1" in str(platform.run(second)["progress"]), "the second says that it waits")
    worker.kill()
    worker.start()
    (worker.job_folder(platform, first) / "go").touch()
    for name in (first, second):
        platform.reaches(name, "finished")
        assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
        assert "restarting (start" not in platform.logs(name)


def test_a_stop_takes_a_job_out_of_the_queue(
    platform: PlatformProcess, worker: RemoteWorker, spooler: dict[str, str]
) -> None:
    first, second = platform.submit("wait:1"), platform.submit()
    until(lambda: "queued as job" in str(platform.run(second)["progress"]), "the second waits")
    platform.json("POST", f"eval-runs/{second}/stop", json={})
    platform.reaches(second, "stopped")
    platform.json("POST", f"eval-runs/{first}/stop", json={})
    platform.reaches(first, "stopped")

    def listed() -> str:
        return subprocess.run(["tsp", "-l"], env=spooler, capture_output=True, text=True, check=False).stdout

    until(lambda: "queued" not in listed() and "running" not in listed(), "the scheduler has neither any more")


def test_a_job_that_dies_there_is_started_again_with_another_ticket(
    platform: PlatformProcess, worker: RemoteWorker
) -> None:
    name = platform.submit("crash-once:3")
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    assert "is finished" in platform.logs(name)
    assert "restarting (start 2)" in platform.logs(name)


def test_a_scheduler_that_refuses_is_said_on_the_run(platform: PlatformProcess, tmp_path: Path) -> None:
    start = "start = \"sh -c 'echo no room >&2; exit 3'\""
    config = f'executor = "command"\n[command]\n{start}\nlist = "true"\nend = "true {{id}}"\n'
    with remote_worker(platform, tmp_path / "full", config):
        name = platform.submit()
        found = platform.reaches(name, "failed")
    assert "its machine or executor failed 3 times in a row" in found["failure"]["message"]
    assert "could not be started: sh failed with exit code 3: no room" in found["failure"]["message"]
