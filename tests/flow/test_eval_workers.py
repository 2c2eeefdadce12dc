"""Rows over several processes: the same results, one journal, and everything that ends or resumes a run works."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from osmosis.errors import UsageError
from osmosis.local.evaluate import evaluate
from osmosis.local.workers import worker_count
from support.endpoint import ModelEndpoint, Reply

pytestmark = pytest.mark.slow

AGENTS = """
import os, signal
from pathlib import Path
from osmosis.sdk.agent_loop import RolloutAgentLoop

HERE = Path(__file__).parent

class Loop(RolloutAgentLoop):
    name = "loop"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        print("what an agent prints is no frame")
        messages = list(ctx.request.messages)
        if ctx.request.metadata.get("mode") == "die" and not (HERE / "died").exists():
            (HERE / "died").write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        (HERE / "word.txt").read_text()
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)

agent = Loop()

def exact(solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str.rpartition("#### ")[2] == ground_truth else 0.0

def process(messages, ground_truth, metadata):
    return float(os.getpid())
"""
ROWS = 24


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "word.txt").write_text("a")
    rows = [{"user_prompt": f"What is {i} * 7?", "ground_truth": str(i * 7)} for i in range(ROWS)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def command(*more: str) -> list[str]:
    line = "eval -m agents:agent -d d.jsonl --eval-fn agents:exact --eval-fn agents:process --batch-size 8 --name r"
    model = () if "--model" in more else ("--model", "offline/calculator")
    return [sys.executable, "-m", "osmosis", *line.split(), *model, *more]


def run(folder: Path, *more: str, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [*command(*more), "--json"], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout or done.stderr.splitlines()[-1])
    return found


def stored(folder: Path) -> list[dict[str, Any]]:
    path = folder / ".osmosis/runs/r/rollouts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_results_are_those_of_one_process(folder: Path) -> None:
    summary = run(folder, "--workers", "2", "--n", "2")["data"]["summary"]
    lines = stored(folder)
    assert sorted((line["row_index"], line["attempt"]) for line in lines) == [
        (i, n) for i in range(ROWS) for n in range(2)
    ]
    assert len({line["scores"]["agents:process"]["value"] for line in lines}) == 2
    assert all(line["hashes"].keys() == {"agent", "sampling", "score", "row"} for line in lines)
    assert summary["completed_runs"] == ROWS * 2
    alone = run(folder, "--name", "alone", "--n", "2")["data"]["summary"]
    assert summary["eval_fns"]["agents:exact"] == alone["eval_fns"]["agents:exact"]
    again = run(folder, "--workers", "2", "--n", "3")["data"]["summary"]
    assert again["completed_runs"] == ROWS * 3
    assert stored(folder)[: ROWS * 2] == lines


def test_a_worker_that_dies_costs_what_it_had_in_flight_and_is_replaced(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "d.jsonl").read_text().splitlines()]
    rows[3]["mode"] = "die"
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "agents.py").write_text(AGENTS)
    summary = run(folder, "--workers", "2", "--batch-size", "2")["data"]["summary"]
    failed = [line for line in stored(folder) if line["status"] == "failed"]
    assert summary["completed_runs"] == ROWS
    assert 3 in [line["row_index"] for line in failed]
    assert len(failed) <= 2
    assert {line["failure"]["category"] for line in failed} == {"server_died"}
    assert "signal 9" in failed[0]["failure"]["message"]
    assert run(folder, "--workers", "2", "--retry-failed")["data"]["summary"]["failed"] == 0


def test_a_budget_pauses_and_a_resume_goes_on(folder: Path) -> None:
    paused = run(folder, "--workers", "2", "--max-tokens-total", "60", "--batch-size", "2", code=1)["data"]["summary"]
    assert "budget" in paused["stopped"]
    assert paused["completed_runs"] < ROWS
    line = [sys.executable, "-m", "osmosis", "eval", "resume", "r", "--max-tokens-total", "100000", "--workers", "2"]
    done = subprocess.run([*line, "--json"], cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert json.loads(done.stdout)["data"]["summary"]["completed_runs"] == ROWS


def test_what_workers_open_belongs_to_the_agent(folder: Path) -> None:
    run(folder, "--workers", "2")
    (folder / "word.txt").write_text("b")
    assert "agent changed: word.txt" in run(folder, "--workers", "2", code=1)["error"]["message"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_stops_a_run_with_its_workers(folder: Path, signals: int) -> None:
    with ModelEndpoint(lambda body, n: Reply(hang=True) if "What is 3" in str(body) else None) as endpoint:
        words = command("--workers", "2", "--model", "m", "--base-url", endpoint.url, "--agent-timeout", "6")
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 60
        while len(stored(folder)) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(signals):
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.3)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert len(children) >= 2
    for child in children:
        assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]


@pytest.mark.parametrize("text", ["0", "-1", "1000", "many"])
def test_counts_that_mean_nothing_are_usage_errors(folder: Path, text: str) -> None:
    assert "--workers must be" in run(folder, "--workers", text, code=2)["error"]["message"]


def test_auto_is_a_worker_for_each_core() -> None:
    assert worker_count("auto") == len(os.sched_getaffinity(0))


def test_objects_without_a_name_cannot_be_handed_to_workers(folder: Path) -> None:
    def nameless(solution_str: str, ground_truth: str, extra_info: object = None) -> float:
        return 1.0

    with pytest.raises(UsageError, match="by name, and nameless"):
        evaluate("agents:agent", "d.jsonl", model="offline/echo", scorers=nameless, base_dir=folder, workers=2)
