"""`osmosis eval why`, asked from outside while a run goes on: a blocked loop, rate limits, a run that was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import run_command
from support.endpoint import ModelEndpoint, Reply
from support.eval_project import AGENT, SCORE, write_rows

BLOCKS = AGENT.replace("messages.append(", "import time; time.sleep(120)\n        messages.append(")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "why_agent.py").write_text(AGENT)
    (tmp_path / "why_score.py").write_text(SCORE)
    write_rows(tmp_path / "rows.jsonl", 8)
    return tmp_path


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    line = ["eval", "-m", "why_agent:agent", "-d", "rows.jsonl", "--eval-fn", "why_score:exact", "--name", "slow"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENAI_API_KEY": "k"}
    command = [sys.executable, "-m", "osmosis", *line, "--batch-size", "4", *words]
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def why(folder: Path) -> dict[str, object]:
    return json.loads(run_command("eval", "why", "slow", "--json", cwd=folder).out)["data"]


def until(folder: Path, seen: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    """What it says once it says this; fails when it does not in a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / ".osmosis" / "runs" / "slow" / "pulse.json").exists() and seen(found := why(folder)):
            return found
        time.sleep(0.2)
    raise AssertionError(why(folder))


def codes(found: dict[str, object]) -> set[str]:
    return {reason["code"] for reason in found["reasons"]}


def test_a_blocked_event_loop_is_named_by_file_and_line(project: Path) -> None:
    (project / "why_agent.py").write_text(BLOCKS)
    line = 1 + BLOCKS.splitlines().index("        import time; time.sleep(120)")
    with running(project, "--model", "offline/calculator"):
        found = until(project, lambda found: "event-loop" in codes(found))
    assert found["state"] == "running"
    (blocked,) = [reason for reason in found["reasons"] if reason["code"] == "event-loop"]
    assert f"why_agent.py:{line}" in blocked["what"]


def test_rate_limits_then_a_kill_then_the_end(project: Path) -> None:
    free = False

    def answer(body: dict[str, object], number: int) -> Reply | None:
        # The first call asks whether the model is there; the fourth waits long enough to be seen.
        return None if free or number < 3 else Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "100"})

    with ModelEndpoint(answer) as endpoint:
        words = ("--model", "m", "--base-url", endpoint.url)
        with running(project, *words) as process:
            found = until(project, lambda found: "rate-limit" in codes(found))
            assert (found["state"], found["total"]) == ("running", 8)
            assert found["stages"]["waiting for a rate limit"] >= 2
            assert found["longest"]
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        found = why(project)
        assert (found["state"], codes(found) & {"interrupted", "rate-limit"}) == ("interrupted", {"interrupted"})
        free = True
        with running(project, *words) as process:
            process.wait(60)
    found = why(project)
    assert (found["state"], found["done"]) == ("over", 8)
    assert "interrupted" not in codes(found)
    assert found["times"]["calls"] == 8
