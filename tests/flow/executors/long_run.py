"""A long evaluation with real jobs: an agent that burns 50 ms of CPU, and what is asked of a run that was disturbed.

0 lost and 0 doubled is said of each rollout: what was stored before a kill is the same one at the end, nobody made it
again, and the report is that of one job that nobody disturbed.
"""

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from support.platform_process import PlatformProcess, until

JOB = f"{sys.executable} -m osmosis.jobs"
ROLLOUTS = int(os.environ.get("OSMOSIS_TEST_SOAK_ROLLOUTS", "2000"))
ATTEMPTS = 4
LONG_S = 3600.0
PAGE = 50
PYPROJECT = '[project]\nname = "multiply"\nversion = "0.1"\ndependencies = ["osmosis-ai>=1"]\n'
AGENT = """
import re
import time
from osmosis.sdk.workflow import Grader
from osmosis.sdk.types import AgentWorkflowConfig, ConcurrencyConfig
from osmosis.sdk.workflow import AgentWorkflow


class Multiply(AgentWorkflow):
    async def run(self, ctx):
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        async with ctx.chat() as chat:
            answer = await chat.complete(list(ctx.prompt))
        return [*ctx.prompt, answer.message]


class Judge(Grader):
    async def grade(self, ctx):
        found = re.findall(r"####\\s*(-?\\d+)", str(ctx.sample.messages[-1].get("content")))
        ctx.set_reward(1.0 if found and found[-1] == ctx.label else 0.0)


config = AgentWorkflowConfig(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=16))
"""
TIMES = frozenset({"duration_ms", "latency", "latency_ms", "durations", "created_at", "started_at", "completed_at"})


def say(text: str) -> None:
    """To whoever watches."""
    sys.stdout.write(f"\n{text}")
    sys.stdout.flush()


def seeded(name: str) -> random.Random:
    """Its seed is printed; `OSMOSIS_TEST_SOAK_SEED` repeats one."""
    seed = os.environ.get("OSMOSIS_TEST_SOAK_SEED") or str(random.randrange(10**6))
    say(f"{name}: OSMOSIS_TEST_SOAK_SEED={seed}")
    return random.Random(f"{name} {seed}")


def prepare(platform: PlatformProcess, folder: Path) -> None:
    rows = [
        {"user_prompt": f"What is {a} times {a + 3}?", "ground_truth": str(a * (a + 3))}
        for a in range(2, 2 + ROLLOUTS // ATTEMPTS)
    ]
    platform.prepare(folder, files={"main.py": AGENT, "pyproject.toml": PYPROJECT}, rows=rows)


def submit(platform: PlatformProcess, *, shards: int, rows: int = ROLLOUTS // ATTEMPTS) -> str:
    experiment = {"rollout": "multiply", "entrypoint": "main.py", "dataset": "sums"}
    evaluation = {"limit": rows, "n": ATTEMPTS, "batch_size": 8}
    return platform.submit(
        experiment_config={**experiment, "model_path": "offline/calculator"},
        evaluation_config=evaluation,
        advanced_config={"shards": shards},
    )


def count(platform: PlatformProcess, name: str) -> int:
    return int(platform.json("GET", f"eval-runs/{name}/rollouts?limit=1")["total_count"])


def reaches(platform: PlatformProcess, name: str, rollouts: int) -> None:
    until(lambda: count(platform, name) >= rollouts, f"{rollouts} rollouts are stored", LONG_S)


def rollouts_of(platform: PlatformProcess, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = platform.json("GET", f"eval-runs/{name}/rollouts?limit={PAGE}&offset={len(found)}")["rollouts"]
        found += page
        if len(page) < PAGE:
            return found


Key = tuple[int, int]


def ids_of(platform: PlatformProcess, name: str) -> dict[Key, str]:
    """Which rollout is stored for each row and attempt."""
    found = rollouts_of(platform, name)
    ids = {(row["row_index"], row["attempt"]): row["rollout_id"] for row in found}
    assert len(ids) == len(found), "a rollout is there twice"
    return ids


def journals(folders: Iterable[Path]) -> Iterator[tuple[Key, str]]:
    """All that was finished under these folders, torn last lines apart."""
    for folder in folders:
        for journal in folder.rglob("journal/rollouts.jsonl"):
            for line in journal.read_bytes().split(b"\n")[:-1]:
                found = json.loads(line)
                yield (found["row_index"], found["attempt"]), found["rollout_id"]


def figures(platform: PlatformProcess, name: str) -> object:
    """All that a report says, but for what took how long."""
    return _timeless(
        [platform.json("GET", f"eval-runs/{name}")["results"], platform.json("GET", f"eval-runs/{name}/metrics")]
    )


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {key: _timeless(one) for key, one in value.items() if key not in TIMES}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


@dataclass
class Witness:
    """What is stored must stay; asked before each kill, and at the end."""

    platform: PlatformProcess
    name: str
    stored: dict[Key, str] = field(default_factory=dict)

    def look(self) -> None:
        found = ids_of(self.platform, self.name)
        changed = {key: one for key, one in self.stored.items() if found.get(key) != one}
        assert not changed, f"stored before, and lost or replaced since: {changed}"
        self.stored = found

    def judge(self, folders: Iterable[Path]) -> int:
        """At the end: how many rollouts were made in vain, because nobody had heard of them when their job died."""
        self.look()
        owed = {(row, attempt) for row in range(ROLLOUTS // ATTEMPTS) for attempt in range(ATTEMPTS)}
        assert self.stored.keys() == owed
        made = {one for _, one in journals(folders)}
        return len(made - set(self.stored.values()))


class CpuOf:
    """Seconds of CPU of the processes below some, also of those that have ended."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = list(roots)
        self._seen: dict[tuple[int, float], float] = {}

    def now(self) -> dict[tuple[int, float], float]:
        for root in self._roots:
            with suppress(psutil.NoSuchProcess):
                for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        self._seen[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
        return dict(self._seen)

    def since(self, before: dict[tuple[int, float], float]) -> tuple[float, float]:
        """Of all, and of the one that used the most: a rollout server, where agents run."""
        used = [seconds - before.get(key, 0.0) for key, seconds in self.now().items()]
        return sum(used), max(used, default=0.0)


def rate(rollouts: list[dict[str, Any]]) -> float:
    """Rollouts a second, from the first that was stored to the last."""
    times = sorted(datetime.fromisoformat(row["created_at"].replace("Z", "+00:00")) for row in rollouts)
    return (len(times) - 1) / (times[-1] - times[0]).total_seconds()
