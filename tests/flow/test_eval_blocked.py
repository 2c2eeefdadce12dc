"""Agents that block, leave threads, fork, or break what is around them: the run ends, and names what was done."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.engine.journal import Journal
from support.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.slow]

AGENTS = r"""
import asyncio, glob, json, os, re, threading, time
from osmosis.sdk.agent_loop import RolloutAgentLoop

class Unreadable(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(name)

def sleep_for_ever():
    while True:
        try:
            time.sleep(300)
        except BaseException:
            pass

def print_late(seconds):
    time.sleep(0.3)
    print("printed late")
    time.sleep(seconds)

async def in_a_child():
    await asyncio.gather(asyncio.sleep(0), asyncio.create_task(block()))

async def block():
    time.sleep(300)

class Loop(RolloutAgentLoop):
    name = "loop"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        mode = ctx.request.metadata["mode"]
        if mode == "sleep": await block()
        if mode == "child": await in_a_child()
        if mode == "regex": re.match(r"(a+)+$", "a" * 40 + "b")
        if mode == "stubborn": open("blocked", "w").close(); sleep_for_ever()
        if mode == "unreadable": raise Unreadable()
        if mode == "fork" and os.fork() == 0: return ctx.complete(messages)
        if mode == "fork, await" and os.fork() == 0: await asyncio.sleep(0.01)
        if mode == "stop": asyncio.get_running_loop().stop()
        if mode == "cancel": [task.cancel() for task in asyncio.all_tasks()]
        if mode == "thread": threading.Thread(target=print_late, args=(60,)).start()
        if mode == "daemon": threading.Thread(target=print_late, args=(60,), daemon=True).start()
        if mode == "dumps": json.dumps = lambda *_, **__: "BROKEN"
        if mode == "stdout": os.close(1)
        if mode == "unlink": [os.unlink(path) for path in glob.glob(".osmosis/runs/*/rollouts.jsonl")]
        if mode == "exit": os._exit(3)
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)

agent = Loop()

def score(solution_str, ground_truth, extra_info=None):
    if extra_info["mode"] == "score": re.match(r"(a+)+$", "a" * 40 + "b")
    return 1.0
"""
ROWS, BAD = 6, 2


def command(folder: Path, mode: str, *words: str) -> list[str]:
    (folder / "agents.py").write_text(AGENTS)
    rows = [{"user_prompt": str(i), "ground_truth": "x", "mode": mode if i == BAD else ""} for i in range(ROWS)]
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *(sys.executable, "-m", "osmosis", "eval", "-m", "agents:agent", "-d", "d.jsonl", "--eval-fn", "agents:score"),
        *("--model", "offline/echo", "--batch-size", "3", "--name", "run", "--json", *words),
    ]


def evaluate(folder: Path, mode: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, mode, *words), cwd=folder, capture_output=True, text=True, timeout=90, check=False
    )


def stored(folder: Path) -> dict[int, Any]:
    rollouts = list(Journal(folder / ".osmosis" / "runs" / "run").rollouts())
    assert len(rollouts) == len({rollout.row_index for rollout in rollouts})
    return {rollout.row_index: rollout for rollout in rollouts}


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("mode", "failure"),
    [
        *(("sleep", "agent/timeout"), ("child", "agent/timeout"), ("regex", "agent/timeout")),
        *(("unreadable", "agent/agent_error"), ("fork", None), ("fork, await", None)),
        *(("thread", None), ("daemon", None), ("dumps", None)),
        *(("stubborn", "agent/timeout"), ("exit", "setup/server_died"), ("score", "agent/timeout")),
    ],
)
def test_one_rollout_pays_for_what_it_does(tmp_path: Path, mode: str, failure: str | None, workers: str) -> None:
    if workers == "1" and mode in ("stubborn", "exit", "score"):
        pytest.skip("only a process of its own can be taken away from it")
    done = evaluate(tmp_path, mode, "--agent-timeout", "2", "--score-timeout", "2", "--workers", workers)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout), "nothing else is in it"
    rollouts = stored(tmp_path)
    assert len(rollouts) == ROWS
    assert [index for index, rollout in rollouts.items() if rollout.failure] == ([BAD] if failure else [])
    if failure:
        bad = rollouts[BAD].failure
        assert f"{bad.phase.value}/{bad.category.value}" == failure


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("stop", "stopped the event loop"),
        ("cancel", "cancelled the run's tasks"),
        ("unlink", "deleted while it was written"),
        ("stdout", "standard output is closed"),
    ],
)
def test_a_run_that_code_of_a_user_ended_says_so(tmp_path: Path, mode: str, said: str) -> None:
    done = evaluate(tmp_path, mode)
    assert done.returncode == 1
    assert said in json.loads(done.stderr.splitlines()[-1])["error"]["message"]


def test_the_time_limit_of_a_run_ends_code_that_nothing_interrupts(tmp_path: Path) -> None:
    done = evaluate(tmp_path, "stubborn", "--agent-timeout", "1", "--run-timeout", "2")
    assert done.returncode == 1
    assert "in sleep_for_ever blocks it" in done.stderr
    assert BAD not in stored(tmp_path)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_ends_blocked_processes(tmp_path: Path, workers: str) -> None:
    """One SIGTERM for a run in this process, SIGKILL for one whose workers then have no parent."""
    run = subprocess.Popen(
        command(tmp_path, "stubborn", "--workers", workers),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    asyncio.run(until(lambda: (tmp_path / "blocked").exists(), within=60))
    run.send_signal(signal.SIGTERM if workers == "1" else signal.SIGKILL)
    _, err = run.communicate(timeout=60)  # workers have its standard error: it ends with the last of them
    if workers == "1":
        assert run.returncode == 130
        assert b"cut off" in err
