"""Start-up of the command line, paired with `python -c "import typer"` in alternating order.

Prints median seconds and the ratio to that import; exit code 1 when a ratio is above its bound. Measures processes,
caches warm; knows nothing of what a command does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 15
BARE = [sys.executable, "-c", "import typer"]
OSMOSIS = [sys.executable, "-m", "osmosis"]
CASES: dict[str, tuple[list[str], float]] = {
    "--version": ([*OSMOSIS, "--version"], 1.2),
    "--help": ([*OSMOSIS, "--help"], 2.0),
    "whoami": ([*OSMOSIS, "whoami"], 4.0),
    "config check": ([*OSMOSIS, "config", "check"], 4.0),
}
"""Command, and how many times the bare import it may take."""


def once(command: list[str], cwd: Path, environ: dict[str, str]) -> float:
    """Seconds of one process, whatever it answers."""
    started = time.perf_counter()
    subprocess.run(command, cwd=cwd, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started


def make_workspace(folder: Path, environ: dict[str, str]) -> Path:
    """A workspace with one rollout, for `config check`; a platform and a login, for `whoami`."""
    for words in (["platform", "start", "--port", "0"], ["login"]):
        subprocess.run([*OSMOSIS, *words], cwd=folder, env=environ, check=True, capture_output=True)
    for words in (["init", "bench", "--no-platform"], ["rollout", "new", "multiply", "--template", "multiply"]):
        cwd = folder if words[0] == "init" else folder / "bench"
        subprocess.run([*OSMOSIS, *words], cwd=cwd, env=environ, check=True, capture_output=True)
    return folder / "bench"


def measure(rounds: int = ROUNDS) -> dict[str, tuple[float, float]]:
    """Case -> median seconds of the command and of the bare import measured beside it."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environ = {"PATH": os.environ["PATH"], "HOME": scratch, "OSMOSIS_CONFIG_DIR": str(folder / "c")}
        environ["OSMOSIS_DATA_DIR"] = str(folder / "d")
        try:
            workspace = make_workspace(folder, environ)
            for name, (command, _) in CASES.items():
                cwd = workspace if name == "config check" else folder
                pairs = [(once(command, cwd, environ), once(BARE, cwd, environ)) for _ in range(rounds + 1)]
                ours, bare = zip(*pairs[1:], strict=True)  # the first pair warms the caches
                found[name] = (statistics.median(ours), statistics.median(bare))
        finally:
            subprocess.run([*OSMOSIS, "platform", "stop"], cwd=folder, env=environ, check=True, capture_output=True)
    return found


def main() -> int:
    worst = 0
    print(f"{'command':<14}{'seconds':>9}{'import typer':>14}{'ratio':>8}{'bound':>8}")
    for name, (ours, bare) in measure().items():
        bound = CASES[name][1]
        worst |= ours / bare > bound
        print(f"{name:<14}{ours:>9.3f}{bare:>14.3f}{ours / bare:>8.2f}{bound:>8.1f}")
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
