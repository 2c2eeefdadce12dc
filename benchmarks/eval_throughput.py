"""How fast `osmosis eval` is, beside a bare aiohttp loop in the same minutes on the same machine.

Each load runs as whole processes (start-up included), alternating between the two, against the stub endpoint in
a process of its own; the medians are printed. Ratios carry over to other machines, absolute figures do not.

    python benchmarks/eval_throughput.py            # the table of docs/performance.md
    python benchmarks/eval_throughput.py --big      # 100,000 rollouts, resume, the head of a large file
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass
class Cost:
    """Of one process: wall and CPU seconds, peak MiB."""

    wall: float
    cpu: float
    mib: float


@dataclass
class Load:
    name: str
    rows: int
    n: int = 1
    lanes: int = 64
    tool: bool = False

    @property
    def rollouts(self) -> int:
        return self.rows * self.n

    @property
    def calls(self) -> int:
        return self.rollouts * (2 if self.tool else 1)


LOADS = [
    Load("1000 x 1, 64 in flight", 1000),
    Load("1000 x 1, 1024 in flight", 1000, lanes=1024),
    Load("200 x 5 with a tool, 64 in flight", 200, n=5, tool=True),
    Load("10,000 x 1, 64 in flight", 10_000),
    Load("10,000 x 1, 1024 in flight", 10_000, lanes=1024),
]


def compile_all() -> None:
    """As an installer leaves a package: where nothing writes bytecode, start-up would be mostly compiling."""
    compileall.compile_dir(HERE.parent / "src", quiet=1)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def measure(command: list[str], cwd: Path) -> Cost:
    """Runs the command to its end; raises when it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit {process.returncode}: {said.decode(errors='replace')}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def dataset(folder: Path, rows: int) -> Path:
    path = folder / f"rows-{rows}.jsonl"
    if not path.exists():
        with path.open("w") as out:
            for i in range(rows):
                row = {"system_prompt": "You add.", "user_prompt": f"{i}: what is 40 + 2?", "ground_truth": "42"}
                out.write(json.dumps(row) + "\n")
    return path


def ours(load: Load, url: str, folder: Path, name: str, *more: str) -> list[str]:
    agent = "eval_agents:tool" if load.tool else "eval_agents:single"
    return [
        *(sys.executable, "-m", "osmosis", "eval", "-m", f"{HERE / 'eval_agents.py'}:{agent.partition(':')[2]}"),
        *("-d", str(dataset(folder, load.rows)), "--eval-fn", f"{HERE / 'eval_agents.py'}:exact"),
        *("--model", "stub", "--base-url", url, "--n", str(load.n), "--batch-size", str(load.lanes)),
        *("--name", name, "-o", str(folder / "out.json"), *more),
    ]


def bare(load: Load, url: str, folder: Path) -> list[str]:
    return [
        *(sys.executable, str(HERE / "bare_loop.py"), "--url", url, "--dataset", str(dataset(folder, load.rows))),
        *("--output", str(folder / "bare.jsonl"), "--lanes", str(load.lanes), "--n", str(load.n)),
        *(["--tool"] if load.tool else []),
    ]


def compare(loads: list[Load], url: str, folder: Path, rounds: int) -> None:
    print(
        f"{'load':36} {'ours/s':>8} {'bare/s':>8} {'ratio':>6} {'ms CPU/call':>12} {'bare':>6} {'MiB':>5} {'bare':>5}"
    )
    for load in loads:
        found: dict[str, list[Cost]] = {"ours": [], "bare": []}
        for turn in range(rounds):
            found["bare"].append(measure(bare(load, url, folder), folder))
            found["ours"].append(measure(ours(load, url, folder, f"run-{time.time_ns()}-{turn}"), folder))
        a, b = median(found["ours"]), median(found["bare"])
        print(
            f"{load.name:36} {load.rollouts / a.wall:8.0f} {load.rollouts / b.wall:8.0f} {b.wall / a.wall:6.2f} "
            f"{a.cpu / load.calls * 1000:12.3f} {b.cpu / load.calls * 1000:6.3f} {a.mib:5.0f} {b.mib:5.0f}",
            flush=True,
        )


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(getattr(c, f) for c in costs) for f in ("wall", "cpu", "mib")))


def big(url: str, folder: Path) -> None:
    """Cost against size, resuming what is finished, the head of a large file."""
    for rows in (10_000, 100_000):
        load = Load(f"{rows:,} x 1", rows)
        cost = measure(ours(load, url, folder, f"big-{rows}"), folder)
        print(f"{load.name:36} {rows / cost.wall:8.0f}/s {cost.cpu / rows * 1000:.3f} ms CPU/call {cost.mib:.0f} MiB")
    cost = measure(ours(Load("", 100_000), url, folder, "big-100000", "-q")[:-3], folder)
    print(f"{'resume 100,000 finished':36} {cost.wall:8.2f} s {cost.mib:.0f} MiB")
    load = Load("first 1000 of 1,000,000 rows", 1_000_000)
    cost = measure(ours(load, url, folder, "head", "--limit", "1000"), folder)
    print(f"{load.name:36} {cost.wall:8.2f} s {cost.mib:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--only", type=int, help="one load by its number, from 0")
    given = parser.parse_args()
    compile_all()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stub = subprocess.Popen([sys.executable, str(HERE / "stub_server.py")], stdout=subprocess.PIPE, text=True)
    assert stub.stdout is not None
    url = stub.stdout.readline().strip()
    try:
        with tempfile.TemporaryDirectory() as place:
            if given.big:
                big(url, Path(place))
            else:
                compare(LOADS if given.only is None else [LOADS[given.only]], url, Path(place), given.rounds)
    finally:
        stub.terminate()
        stub.wait()


if __name__ == "__main__":
    main()
