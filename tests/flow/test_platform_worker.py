"""The platform as a process with its worker: jobs run, crash, hang, are stopped; the platform is killed and returns."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.platform_process import FAKE_JOB, PlatformProcess, until

pytestmark = pytest.mark.slow


def started_in(folder: Path, **options: str) -> PlatformProcess:
    environ = {**os.environ, "MARK_OF_THE_PLATFORM": "not for jobs", "UV_CACHE_DIR": "/tmp/uv"}
    process = PlatformProcess(folder / "data", environ=environ, **options)
    process.start()
    process.login()
    process.prepare(folder / "checkout")
    return process


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., PlatformProcess]]:
    """Starts a platform with options of its own; it may be killed and started again."""
    started: list[PlatformProcess] = []

    def start(**options: str) -> PlatformProcess:
        started.append(started_in(tmp_path, **options))
        return started[-1]

    yield start
    for process in started:
        if process.process is not None and process.process.poll() is None:
            process.terminate()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    """One platform for the tests that leave it as it is."""
    process = started_in(tmp_path_factory.mktemp("platform"))
    yield process
    process.terminate()


def test_a_run_goes_from_submit_to_its_figures(serve) -> None:
    platform = serve()
    secret = {"name": "API_KEY", "value": "the-secret-value", "scope": "workspace"}
    platform.json("POST", "environment-secrets", json=secret)
    name = platform.submit("environ", secrets={"required": ["API_KEY"]})
    found = platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    assert (found["results"]["score"], found["results"]["passed"]) == (0.5, 3)

    logs = platform.logs(name)
    names = logs.split("environ: ")[1].splitlines()[0].split()
    assert {"PATH", "UV_CACHE_DIR"} <= set(names)
    assert not {"API_KEY", "FAKE_JOB", "MARK_OF_THE_PLATFORM"} & set(names)
    assert logs.split("secrets: ")[1].splitlines()[0].split() == ["API_KEY"]
    kept = [path for path in platform.folder(name).rglob("*") if path.is_file()]
    assert not [path for path in kept if b"the-secret-value" in path.read_bytes()]
    used = platform.json("GET", "environment-secrets")["environment_secrets"][0]
    assert used["last_used_by"] == name
    assert used["last_used_at"]
    assert platform.terminate() == 0
    assert not (platform.data_dir / "platform.json").exists()


def test_a_job_that_crashes_is_started_again_and_nothing_is_done_twice(platform) -> None:
    name = platform.submit("crash-once:3")
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    assert "exit code 9" in platform.logs(name)
    assert "restarting (start 2)" in platform.logs(name)


def test_a_job_that_always_crashes_fails_the_run_with_its_last_words(platform) -> None:
    name = platform.submit("crash")
    found = platform.reaches(name, "failed")
    assert "ended 3 times" in found["failure"]["message"]
    assert "fake job: crashing as told" in found["failure"]["message"]


def test_a_job_that_reports_its_own_failure_is_believed(platform) -> None:
    found = platform.reaches(platform.submit("fail"), "failed")
    assert found["failure"]["message"] == "failed as told"
    assert found["failure"]["fix"] == "do not tell"


def test_a_job_that_falls_silent_is_ended_when_its_lease_ends(serve) -> None:
    platform = serve(lease="1")
    name = platform.submit("mute")
    platform.reaches(name, "failed")
    assert "sent no heartbeat for 1 s" in platform.logs(name)


def test_a_stop_reaches_the_job_which_reports_what_it_has(platform) -> None:
    name = platform.submit("wait:2")
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    platform.json("POST", f"eval-runs/{name}/stop", json={})
    found = platform.reaches(name, "stopped")
    assert found["results"]["graded"] == 2


def test_a_job_that_does_not_stop_is_ended(serve) -> None:
    platform = serve(stop_grace="1")
    name = platform.submit("mute")
    until(lambda: "job started" in platform.logs(name), "the job runs")
    platform.json("POST", f"eval-runs/{name}/stop", json={})
    platform.reaches(name, "stopped")


def test_the_platform_killed_in_mid_run_comes_back_and_the_job_goes_on(serve) -> None:
    platform = serve()
    name = platform.submit("wait:2")
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    folder = platform.folder(name)
    platform.kill()
    (folder / "go").touch()
    platform.start()
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    assert "job continues" in platform.logs(name)
    assert "restarting (start" not in platform.logs(name)


def test_platform_and_job_both_killed_and_the_run_goes_on_from_its_journal(serve) -> None:
    platform = serve()
    name = platform.submit("wait:2")
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    folder = platform.folder(name)
    pid = int(platform.logs(name).split("(process ")[1].split(")")[0])
    platform.kill()
    os.killpg(pid, signal.SIGKILL)
    (folder / "go").touch()
    platform.start()
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    journal = (folder / "fake-journal.jsonl").read_bytes().splitlines()
    assert len(journal) == 6, "no rollout was made twice"


def test_a_platform_that_is_stopped_in_order_ends_its_jobs_and_goes_on_later(serve) -> None:
    platform = serve()
    name = platform.submit("wait:2")
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    folder = platform.folder(name)
    pid = int(platform.logs(name).split("(process ")[1].split(")")[0])
    assert platform.terminate() == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    (folder / "go").touch()
    platform.start()
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]


def test_a_retry_makes_only_what_is_missing(platform) -> None:
    name = platform.submit("wait:2")
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    folder = platform.folder(name)
    platform.json("POST", f"eval-runs/{name}/stop", json={})
    platform.reaches(name, "stopped")
    (folder / "retry-1").mkdir()
    (folder / "retry-1" / "go").touch()
    platform.json("POST", f"eval-runs/{name}/retry", json={})
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    journal = (folder / "retry-1" / "fake-journal.jsonl").read_bytes().splitlines()
    assert len(journal) == 4


def test_several_jobs_at_once_and_a_queue_behind_them(serve) -> None:
    platform = serve(max_jobs="2")
    names = [platform.submit("wait:1") for _ in range(3)]
    until(lambda: all(platform.rollouts(name) for name in names[:2]), "two runs work")
    assert platform.run(names[2])["status"] == "pending"
    for name in names:
        (platform.folder(name)).mkdir(exist_ok=True)
        (platform.folder(name) / "go").touch()
    for name in names:
        platform.reaches(name, "finished")


@contextmanager
def worker_of(platform: PlatformProcess, *options: str) -> Iterator[None]:
    """A worker in a process of its own, told to end at the end."""
    command = [sys.executable, "-m", "osmosis.platform", "worker", "--data-dir", str(platform.data_dir)]
    worker = subprocess.Popen(
        [*command, "--platform-url", platform.url, "--job-command", FAKE_JOB, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_a_worker_of_its_own_takes_the_runs(serve) -> None:
    platform = serve(no_worker="")
    name = platform.submit()
    with worker_of(platform):
        platform.reaches(name, "finished")
    waiting = platform.submit()
    assert platform.run(waiting)["status"] == "pending"


def test_a_worker_that_is_restarted_again_and_again_costs_no_start(serve) -> None:
    """Its job says in order that it was stopped; one more than the starts that a run has."""
    platform = serve(no_worker="")
    name = platform.submit("wait:2,orderly")
    for number in range(4):
        with worker_of(platform):
            until(lambda n=number: platform.logs(name).count("orderly: ready") > n, "the job runs")
        # By the job's last word, or by the worker's.
        until(
            lambda n=number: len(re.findall("was interrupted|was stopped", platform.logs(name))) == n + 1, "it is said"
        )
    (platform.folder(name) / "go").touch()
    with worker_of(platform):
        platform.reaches(name, "finished")


@pytest.mark.parametrize("how", ["stands still", "is killed"])
def test_a_platform_that_is_away_for_longer_than_the_lease_costs_no_start(serve, how) -> None:
    """The worker is a process of its own, which goes on and sees that no job was heard for several leases."""
    platform = serve(no_worker="", lease="2")
    name = platform.submit("wait:2")
    with worker_of(platform, "--lease", "2"):
        until(lambda: len(platform.rollouts(name)) == 2, "the job waits")
        if how == "is killed":
            platform.kill()
            time.sleep(6)
            platform.start()
        else:
            platform.process.send_signal(signal.SIGSTOP)
            time.sleep(6)
            platform.process.send_signal(signal.SIGCONT)
        time.sleep(3)  # longer than a lease: whoever would end it has had the time
        (platform.folder(name) / "go").touch()
        platform.reaches(name, "finished")
    assert platform.logs(name).count("job started") == 1, platform.logs(name)


@contextmanager
def taking_no_results(platform: PlatformProcess, how: str) -> Iterator[None]:
    if how == "stands still":
        platform.process.send_signal(signal.SIGSTOP)
        yield
        platform.process.send_signal(signal.SIGCONT)
    else:
        with closing(sqlite3.connect(platform.data_dir / "platform.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield
            database.execute("ROLLBACK")


@pytest.mark.parametrize("how", ["stands still", "has a locked database"])
def test_what_jobs_report_while_the_platform_takes_nothing_comes_later_and_once(serve, how) -> None:
    platform = serve(no_worker="", lease="2")
    name = platform.submit("wait:5", evaluation_config={"limit": 12, "n": 2, "batch_size": 2})
    with worker_of(platform, "--lease", "2"):
        until(lambda: len(platform.rollouts(name)) == 5, "the job waits")
        with taking_no_results(platform, how):
            (folder_of(platform) / "go").touch()
            time.sleep(5)  # more than two leases
        platform.reaches(name, "finished")
    assert platform.rollouts(name) == sorted([*range(12)] * 2)
    assert platform.logs(name).count("job started") == 1, platform.logs(name)


def folder_of(platform: PlatformProcess) -> Path:
    """Of the one run there is, without asking."""
    [folder] = (platform.data_dir / "runs").iterdir()
    return folder


def test_a_job_that_is_silent_while_the_platform_listens_is_ended_by_a_worker_of_its_own(serve) -> None:
    platform = serve(no_worker="", lease="2")
    name = platform.submit("mute")
    with worker_of(platform, "--lease", "2"):
        platform.reaches(name, "failed")
    assert platform.logs(name).count("sent no heartbeat for 2 s") == 3, platform.logs(name)


def test_a_second_platform_on_the_same_port_says_so_and_ends(platform) -> None:
    command = [sys.executable, "-m", "osmosis.platform", "serve", "--data-dir", str(platform.data_dir)]
    second = subprocess.run(
        [*command, "--port", str(platform.port)], capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert platform.answers()
    assert (platform.data_dir / "platform.json").exists()
