"""SIGKILL in the middle of a run: the run goes on, and every rollout counts once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import psutil
import pytest

from .conftest import Person, wait_until

pytestmark = [pytest.mark.flow, pytest.mark.network]


@pytest.fixture
def running(person: Person, endpoint: Callable[..., str]) -> Person:
    """A person whose second run has some rollouts and is far from its end."""
    url = endpoint("--delay-ms", "120")
    person.types("quickstart", "--yes", "--dir", str(person.demo), "--base-url", url, "--model", "slow")
    config = person.workspace / "configs/eval/multiply.toml"
    config.write_text(config.read_text().replace("batch_size = 8", "batch_size = 1"))
    person.types("eval", "submit", "configs/eval/multiply.toml", "--yes")
    wait_until(lambda: completed(person) >= 3, "some rollouts are stored")
    assert person.asks("eval", "info", "multiply-2")["data"]["eval_run"]["status"] == "running"
    return person


def completed(person: Person) -> int:
    rows = person.asks("eval", "info", "multiply-2")["data"]["results"] or {}
    return int(rows.get("graded") or 0)


def jobs_of(person: Person) -> list[int]:
    """Pids of the job processes of this person's platform, the one that stands ready included."""
    platform = psutil.Process(json.loads((person.data / "platform.json").read_text())["pid"])
    return [one.pid for one in platform.children(recursive=True) if "osmosis.jobs" in one.cmdline()]


def check_counted_once(person: Person) -> None:
    info = person.asks("eval", "info", "multiply-2")["data"]
    assert info["eval_run"]["status"] == "finished"
    assert info["results"]["graded"] == info["results"]["total_runs"] == 60
    journal = next((person.data / "runs").glob(f"{info['eval_run']['id']}*/**/rollouts.jsonl"))
    keys = [(line["row_index"], line["attempt"]) for line in map(json.loads, journal.read_text().splitlines())]
    assert len(keys) == len(set(keys)) == 60


def test_the_platform_killed_and_started_again(running: Person) -> None:
    running.kill_platform()
    refused = running.asks("eval", "info", "multiply-2", expect=1)
    assert refused["error"]["code"] == "NETWORK"
    assert "platform start" in json.dumps(refused["error"])
    running.types("platform", "start")
    running.types("eval", "wait", "multiply-2")
    check_counted_once(running)


def test_platform_and_job_killed_together(running: Person) -> None:
    jobs = jobs_of(running)
    assert jobs
    running.kill_platform()
    for pid in jobs:
        os.kill(pid, signal.SIGKILL)
    running.types("platform", "start")
    running.types("eval", "wait", "multiply-2")
    check_counted_once(running)


def test_the_job_killed(running: Person) -> None:
    for pid in jobs_of(running):
        os.kill(pid, signal.SIGKILL)
    running.types("eval", "wait", "multiply-2")
    check_counted_once(running)


def test_ctrl_c_on_wait_leaves_the_run_going(running: Person) -> None:
    waiting = running.popen("eval", "wait", "multiply-2")
    assert waiting.stdout is not None
    waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    try:
        printed, _ = waiting.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        waiting.kill()
        raise
    assert waiting.returncode == 130, printed
    assert "Traceback" not in printed
    assert "eval wait multiply-2" in printed
    running.types("eval", "wait", "multiply-2")
    check_counted_once(running)
