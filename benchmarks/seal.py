"""How long `osmosis verify` takes for a run of 10,000 rollouts, and whether it finds every changed byte.

python benchmarks/seal.py                # 10,000 rollouts, scored again and replayed; 1,000 changed files
python benchmarks/seal.py --rows 1000
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eval_throughput import compile_all, dataset, measure

from osmosis.errors import OsmosisError
from osmosis.local.seal import verify

AGENT = """
from osmosis import RolloutAgentLoop

class Chat(RolloutAgentLoop):
    name = "chat"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)

agent = Chat()

def exact(solution_str, ground_truth, extra_info=None):
    return float(solution_str.endswith(f"#### {ground_truth}"))
"""
CHANGES = 1000


def changed(content: bytes, chance: random.Random) -> bytes:
    """The file with one byte flipped, deleted or inserted."""
    at = chance.randrange(len(content))
    kind = chance.choice(("flip", "delete", "insert"))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
    return content[:at] + content[at + 1 :] if kind == "delete" else content[:at] + chance.randbytes(1) + content[at:]


def missed(path: Path) -> int:
    """How many of the changed files were taken for the sealed one."""
    content, chance, count = path.read_bytes(), random.Random(0), 0
    for _ in range(CHANGES):
        path.write_bytes(changed(content, chance))
        try:
            count += not verify(path).differing
        except OsmosisError:
            continue
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    given = parser.parse_args()
    compile_all()
    osmosis = [sys.executable, "-m", "osmosis"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sealed.py").write_text(AGENT)
        for rows in (given.rows, 20):
            words = ["eval", "-m", "sealed:agent", "-d", str(dataset(folder, rows)), "--eval-fn", "sealed:exact"]
            words += ["--model", "offline/calculator", "--name", f"run-{rows}", "-q"]
            subprocess.run([*osmosis, *words], cwd=folder, check=False, stderr=subprocess.DEVNULL)
            cost = measure([*osmosis, "eval", "seal", f"run-{rows}"], folder)
            print(f"seal {rows:,} rollouts: {cost.wall:.1f} s")
        path = folder / f"run-{given.rows}.seal.zip"
        for kind, options in (("bytes, journal and report", ["--no-code"]), ("scores and conversations, too", [])):
            cost = measure([*osmosis, "verify", str(path), *options], folder)
            print(
                f"verify {given.rows:,} rollouts, {kind}: {cost.wall:.1f} s, {cost.cpu:.1f} s CPU, {cost.mib:.0f} MiB"
            )
        started = time.perf_counter()
        print(f"{missed(folder / 'run-20.seal.zip')} of {CHANGES:,} changed files missed", end="")
        print(f" in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
