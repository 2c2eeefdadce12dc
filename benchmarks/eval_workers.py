"""What `--workers` gains where a score function burns CPU: the same run in one process and in N, in turns.

The grader works about 5 ms on a core (found out on this machine first). Ratios of medians are printed, and what the
machine allowed meanwhile: the same work in plain loops, in one process and then in N at once, between the runs. On a
machine that is busy with other things more processes also get a larger share of it, so the CPU of each process is
told, too, and what follows from it for free cores: the first process alone, then the busiest worker.

    python benchmarks/eval_workers.py --workers 2 --rounds 3
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eval_throughput import HERE, compile_all, dataset, measure, median

GRADER = """
import hashlib

def burn(solution_str, ground_truth, extra_info=None):
    block = b"x" * 64
    for _ in range({loops}):
        block = hashlib.sha256(block).digest()
    return 1.0 if solution_str.rpartition("#### ")[2] == ground_truth else 0.0
"""


def loops_of(milliseconds: float) -> int:
    """How many rounds of the grader's loop take so much CPU here."""
    block, count = b"x" * 64, 200_000
    started = time.process_time()
    for _ in range(count):
        block = hashlib.sha256(block).digest()
    return int(count * milliseconds / 1000 / (time.process_time() - started))


def ceiling(processes: int, loops: int, rounds: int) -> float:
    """How much faster N processes do the grader's work than one does here and now."""
    burn = f"import hashlib\nb=b'x'*64\nfor _ in range({loops * rounds} // {{}}): b=hashlib.sha256(b).digest()"

    def seconds(count: int) -> float:
        started = time.perf_counter()
        running = [subprocess.Popen([sys.executable, "-c", burn.format(count)]) for _ in range(count)]
        for one in running:
            one.wait()
        return time.perf_counter() - started

    return seconds(1) / seconds(processes)


def shares(command: list[str], cwd: Path) -> list[float]:
    """CPU seconds of the first process, then of each it started, the busiest first; looked up while they run."""
    found: dict[int, float] = {}

    def look(pid: int) -> None:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            for task in Path(f"/proc/{pid}/task").iterdir():
                for child in (task / "children").read_text().split():
                    look(int(child))
        except OSError:  # it has ended meanwhile
            return

    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        look(process.pid)
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    return [found.pop(process.pid), *sorted(found.values(), reverse=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=5.0)
    given = parser.parse_args()
    compile_all()
    stub = subprocess.Popen([sys.executable, str(HERE / "stub_server.py")], stdout=subprocess.PIPE, text=True)
    assert stub.stdout is not None
    url = stub.stdout.readline().strip()
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            loops = loops_of(given.milliseconds)
            (folder / "grader.py").write_text(GRADER.format(loops=loops))
            found, allowed = {}, []
            cpu: dict[int, list[float]] = {}
            for count in [1, given.workers] * given.rounds:
                command = [
                    *(sys.executable, "-m", "osmosis", "eval", "-m", f"{HERE / 'eval_agents.py'}:single"),
                    *("-d", str(dataset(folder, given.rows)), "--eval-fn", "grader:burn", "--model", "stub"),
                    *("--base-url", url, "--batch-size", "64", "--name", f"r{time.time_ns()}"),
                    *("--workers", str(count), "-q"),
                ]
                if count not in cpu:
                    cpu[count] = shares([*command[:-5], "--name", f"s{time.time_ns()}", *command[-3:]], folder)
                found.setdefault(count, []).append(measure(command, folder))
                if count > 1:
                    allowed.append(ceiling(count, loops, given.rows // 2))
    finally:
        stub.terminate()
        stub.wait()
    one, many = median(found[1]), median(found[given.workers])
    load = os.getloadavg()[0]
    alone, first, busiest = cpu[1][0], *cpu[given.workers][:2]
    print(f"CPU of one process: {alone:.2f} s; with workers: {first:.2f} s, {cpu[given.workers][1:]} s in the workers")
    print(f"on {given.workers} free cores at least {alone / (first + busiest):.2f} times as fast")
    print(f"1 process:   {given.rows / one.wall:6.0f} rollouts/s, {one.cpu:5.1f} s CPU")
    print(f"{given.workers} workers:   {given.rows / many.wall:6.0f} rollouts/s, {many.cpu:5.1f} s CPU")
    print(
        f"ratio {one.wall / many.wall:.2f}; bare loops: {statistics.median(allowed):.2f} (load at the end: {load:.1f})"
    )


if __name__ == "__main__":
    main()
