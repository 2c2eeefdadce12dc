"""SIGKILL at random moments, then resume: nothing finished is lost, nothing is doubled, everything gets done."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from support.endpoint import ModelEndpoint, Reply
from support.eval_project import AGENT, SCORE

pytestmark = pytest.mark.slow

ROWS, ATTEMPTS = 60, 3


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agents.py").write_text(AGENT + SCORE)
    rows = [{"user_prompt": f"What is {i} * 7?", "ground_truth": str(i * 7)} for i in range(ROWS)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def command(url, *more):
    flags = f"-m agents:agent -d d.jsonl --eval-fn agents:exact --model m --n {ATTEMPTS} --batch-size 8 --name k -q"
    return [sys.executable, "-m", "osmosis", "eval", *flags.split(), "--base-url", url, *more]


def stored(folder):
    path = folder / ".osmosis" / "runs" / "k" / "rollouts.jsonl"
    if not path.exists():
        return []
    return [line for line in path.read_bytes().split(b"\n")[:-1] if line]


def keys(lines):
    return [(d["row_index"], d["attempt"]) for d in map(json.loads, lines)]


def test_kills_lose_nothing_and_double_nothing(folder):
    source = random.Random(4)
    environ = {**os.environ, "COLUMNS": "100"}
    with ModelEndpoint(lambda body, n: None if n % 7 else Reply("busy", 429, {"retry-after": "0.01"})) as endpoint:
        before: list[bytes] = []
        kills = 0
        while kills < 12:
            target = len(before) + source.randint(0, 14)
            process = subprocess.Popen(
                command(endpoint.url), cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            deadline = time.monotonic() + 60
            while process.poll() is None and len(stored(folder)) <= target and time.monotonic() < deadline:
                time.sleep(source.random() * 0.003)
            if process.poll() is not None:
                assert process.returncode == 0, process.stderr.read().decode()
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            now = stored(folder)
            assert now[: len(before)] == before, "a stored rollout changed or went away"
            assert len(set(keys(now))) == len(now), "a rollout is there twice"
            before = now
        assert kills >= 5
        done = subprocess.run(
            command(endpoint.url, "-o", "r.json"), cwd=folder, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert sorted(keys(stored(folder))) == [(r, a) for r in range(ROWS) for a in range(ATTEMPTS)]
    assert stored(folder)[: len(before)] == before
    results = json.loads((folder / "r.json").read_text())
    assert results["summary"]["completed_runs"] == ROWS * ATTEMPTS
    assert [row["row_index"] for row in results["rows"]] == list(range(ROWS))
    assert all([run["run_index"] for run in row["runs"]] == list(range(ATTEMPTS)) for row in results["rows"])


def test_ctrl_c_finishes_what_is_in_flight_and_says_how_to_go_on(folder):
    with ModelEndpoint(lambda body, n: None) as endpoint:
        words = [w for w in command(endpoint.url) if w != "-q"]
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 60
        while not stored(folder) and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "osmosis eval resume k" in said or len(stored(folder)) == ROWS * ATTEMPTS
        done = subprocess.run(
            [sys.executable, "-m", "osmosis", "eval", "resume", "k", "--json"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["summary"]["completed_runs"] == ROWS * ATTEMPTS


HOLDS = """
import time

class Holds(type(agent)):
    name = "holds"

    async def run(self, ctx):
        if "What is 1 *" in str(ctx.request.messages):
            time.sleep(600)
        return await super().run(ctx)

holds = Holds()
"""


def test_two_signals_end_even_code_that_never_gives_the_loop_back(folder):
    (folder / "agents.py").write_text(AGENT + SCORE + HOLDS)
    with ModelEndpoint(lambda body, n: None) as endpoint:
        words = command(endpoint.url, "-m", "agents:holds", "--limit", "4")
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not (folder / ".osmosis/runs/k/run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "cannot be cancelled" in said
    assert all(json.loads(line)["row_index"] != 1 for line in stored(folder))


def test_the_first_signal_says_what_it_waits_for_and_the_second_cuts_off(folder):
    with ModelEndpoint(lambda body, n: Reply(hang=True) if "What is" in str(body) else None) as endpoint:
        words = [w for w in command(endpoint.url, "--limit", "2") if w != "-q"]
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not (folder / ".osmosis/runs/k/run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "waiting for 6 running rollouts: row " in said
    assert "'model call'" in said
