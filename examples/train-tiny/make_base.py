"""Makes the base model of this example from nothing: `python make_base.py FOLDER --cache DIR [--yes]`.

It runs in the trainer's environment, which is made in the platform's cache when it is not there yet: about 330 MB to
fetch where the CPU build of torch can be had. Where only the CUDA build can, it says how much that is, and asks.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import uv

from osmosis.base.installation import build_wheel
from osmosis.jobs.context import JobLog
from osmosis.jobs.trainer.environment import TrainerBuilder, TrainerEnvironment
from osmosis.metrics.formats import size


def environment(cache: Path, yes: bool) -> TrainerEnvironment | None:
    """The trainer's environment; None when the person does not want that much fetched."""
    log = JobLog(None, lambda line: print(line.message) if line.level != "debug" else None)
    builder = TrainerBuilder(uv.find_uv_bin(), cache, build_wheel(cache), os.environ, log)
    with tempfile.TemporaryDirectory() as folder:
        lock = asyncio.run(builder.plan(Path(folder)))
    if lock.cuda and not yes:
        print(f"only the CUDA build of torch can be had here: {size(lock.download_bytes)} to fetch")
        if input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            return None
    return asyncio.run(builder.environment())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="cache folder of the platform")
    parser.add_argument("--yes", action="store_true", help="fetch whatever is needed")
    chosen = parser.parse_args()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    made = environment(chosen.cache, chosen.yes)
    if made is None:
        return 1
    environ = {**os.environ, "PYTHONPATH": str(made.code), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [str(made.python), str(Path(__file__).with_name("tiny_model.py")), str(chosen.folder)]
    return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
