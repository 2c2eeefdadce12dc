"""SIGKILL in the middle of a run: the run goes on, and every rollout counts once."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from .conftest import Person, a_person, endpoints, wait_until

pytestmark = [pytest.mark.network, pytest.mark.slow]


@dataclass(frozen=True)
class Running:
    """A person with a run that has some rollouts and is far from its end."""

    person: Person
    name: str


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person whose model takes its time, once for all tests: each has a run of its own."""
    folder = tmp_path_factory.mktemp("home")
    with a_person(folder) as person, endpoints(folder) as start:
        url = start("--delay-ms", "120")
        person.types("quickstart", "--yes", "--dir", str(person.demo), "--base-url", url, "--model", "slow")
        config = person.workspace / "configs/eval/multiply.toml"
        config.write_text(config.read_text().replace("batch_size = 8", "batch_size = 1"))
        yield person


@pytest.fixture
def running(at_home: Person) -> Running:
    at_home.types("platform", "start")  # where a test that failed has left none
    at_home.types("eval", "submit", "configs/eval/multiply.toml", "--limit", "20", "--n", "3", "--yes")
    name = at_home.asks("eval", "list")["items"][0]["name"]
    wait_until(lambda: completed(at_home, name) >= 3, "some rollouts are stored")
    assert at_home.asks("eval", "info", name)["data"]["eval_run"]["status"] == "running"
    return Running(at_home, name)


def completed(person: Person, name: str) -> int:
    rows = person.asks("eval", "info", name)["data"]["results"] or {}
    return int(rows.get("graded") or 0)


def jobs_of(person: Person) -> list[int]:
    """Pids of the job processes of this person's platform."""
    platform = psutil.Process(json.loads((person.data / "platform.json").read_text())["pid"])
    return [one.pid for one in platform.children(recursive=True) if "osmosis.jobs" in one.cmdline()]


def check_counted_once(running: Running) -> None:
    info = running.person.asks("eval", "info", running.name)["data"]
    assert info["eval_run"]["status"] == "finished"
    assert info["results"]["graded"] == info["results"]["total_runs"] == 60
    journal = next((running.person.data / "runs").glob(f"{info['eval_run']['id']}*/**/rollouts.jsonl"))
    keys = [(line["row_index"], line["attempt"]) for line in map(json.loads, journal.read_text().splitlines())]
    assert len(keys) == len(set(keys)) == 60


def test_platform_and_job_killed_together(running: Running) -> None:
    jobs = jobs_of(running.person)
    assert jobs
    running.person.kill_platform()
    for pid in jobs:
        os.kill(pid, signal.SIGKILL)
    refused = running.person.asks("eval", "info", running.name, expect=1)["error"]
    assert (refused["code"], "platform start" in json.dumps(refused)) == ("NETWORK", True)
    running.person.types("platform", "start")
    running.person.types("eval", "wait", running.name)
    check_counted_once(running)


def test_ctrl_c_on_wait_leaves_the_run_going(running: Running) -> None:
    waiting = running.person.popen("eval", "wait", running.name)
    waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    try:
        printed, _ = waiting.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        waiting.kill()
        raise
    assert waiting.returncode == 130, printed
    assert "Traceback" not in printed
    assert f"eval wait {running.name}" in printed
    running.person.types("eval", "wait", running.name)
    check_counted_once(running)
