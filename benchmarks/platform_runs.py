"""What an evaluation costs through a platform, beside the same config run here in the same minutes.

Everything is made in a temporary folder: a platform, a workspace of the template `empty`, a dataset, a push. The model
is the stub endpoint, without latency. CPU is that of all processes: the platform's own, its jobs' and their rollout
servers'. On a busy machine only the CPU and the ratio mean anything.

    python benchmarks/platform_runs.py --rows 1000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psutil
from eval_throughput import HERE, compile_all

KEY = "a-key-of-the-stub"


class Place:
    """A platform and a workspace in a folder, and commands typed there."""

    def __init__(self, folder: Path, rows: int, url: str) -> None:
        self.folder, self.workspace = folder, folder / "bench"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS")}
        who = {f"GIT_{role}_{what}": "b@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        own = {"OSMOSIS_DATA_DIR": str(folder / "p"), "OSMOSIS_CONFIG_DIR": str(folder / "c"), "HOME": str(folder)}
        self.environ = {**kept, **who, **own, "STUB": KEY}
        self.osmosis("platform", "start", "--port", "0")
        self.osmosis("login")
        self.osmosis("init", "bench")
        self.osmosis("rollout", "new", "x", "--template", "empty")
        self._write(rows, url)
        self.osmosis("dataset", "upload", "data/x.jsonl", "--yes")
        self.osmosis("secret", "set", "STUB", "--env", "STUB")
        for words in (["add", "-A"], ["commit", "-q", "-m", "x"], ["push", "-q", "-u", "origin", "HEAD"]):
            subprocess.run(["git", *words], cwd=self.workspace, env=self.environ, check=True)

    def _write(self, rows: int, url: str) -> None:
        row = {"system_prompt": "You add.", "ground_truth": "42"}
        lines = [json.dumps({**row, "user_prompt": f"{i}: what is 40 + 2?"}) for i in range(rows)]
        (self.workspace / "data" / "x.jsonl").write_text("\n".join(lines) + "\n")
        path = self.workspace / "configs" / "eval" / "x.toml"
        text = path.read_text()
        for key, value in (("model_path", '"openai/stub"'), ("limit", rows), ("batch_size", 64)):
            text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        text = text.replace("required = []", 'required = ["STUB"]')
        path.write_text(f'{text}\n[advanced]\nbase_url = "{url}"\napi_key_env = "STUB"\n')

    def osmosis(self, *words: str) -> None:
        where = self.workspace if self.workspace.exists() else self.folder
        command = [sys.executable, "-m", "osmosis", *words]
        done = subprocess.run(command, cwd=where, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"osmosis {' '.join(words)}\n{done.stdout}{done.stderr}")

    def cpu(self) -> float:
        """Seconds of the platform and of its jobs that have ended."""
        pid = json.loads((self.folder / "p" / "platform.json").read_text())["pid"]
        return sum(psutil.Process(pid).cpu_times()[:4])

    def submit(self) -> tuple[float, float, float]:
        """One run: seconds until its first rollout, seconds of the rollouts, CPU."""
        before, started = self.cpu(), time.time()
        self.osmosis("eval", "submit", "configs/eval/x.toml", "--yes", "--wait")
        time.sleep(2)  # until the job's process is gone, and counted
        newest = max((self.folder / "p" / "runs").rglob("journal/rollouts.jsonl"), key=os.path.getmtime)
        found = [json.loads(line) for line in newest.read_text().splitlines()]
        begun = [datetime.fromisoformat(one["started_at"].replace("Z", "+00:00")).timestamp() for one in found]
        ended = [at + one["duration_ms"] / 1000 for at, one in zip(begun, found, strict=True)]
        return min(begun) - started, max(ended) - min(begun), self.cpu() - before

    def here(self) -> tuple[float, float]:
        """`eval run` of the same config: seconds of the whole command, CPU."""
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        self.osmosis("eval", "run", "configs/eval/x.toml", "-y")
        wall, after = time.time() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--rows", type=int, default=1000)
    words.add_argument("--rounds", type=int, default=3)
    asked = words.parse_args()
    compile_all()
    stub = subprocess.Popen([sys.executable, str(HERE / "stub_server.py")], stdout=subprocess.PIPE, text=True)
    assert stub.stdout is not None
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(Path(scratch), asked.rows, stub.stdout.readline().strip())
        try:
            place.submit()  # makes the environment
            for _ in range(asked.rounds):
                first, took, cpu = place.submit()
                wall, own = place.here()
                print(f"platform: first rollout after {first:.2f} s, then {asked.rows / took:.0f}/s", end=", ")
                print(f"{cpu:.2f} s CPU", end="; ")
                print(f"here: {asked.rows / wall:.0f}/s with its start, {own:.2f} s CPU", end="; ")
                print(f"ratio {wall / took:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
        finally:
            place.osmosis("platform", "stop")
            stub.terminate()
            stub.wait()


if __name__ == "__main__":
    main()
