"""The trainer's environment for tests: built by the product's own builder, once for all tests that share a folder.

Tests that use it need the CPU build of torch; where only the CUDA build can be had, they are told so and skip.
`python tests/support/run.py trainer_environment FOLDER` makes it before the tests begin, as CI does.
"""

import asyncio
import os
import shutil
import sys
from pathlib import Path

from osmosis.base.installation import build_wheel
from osmosis.jobs.context import JobFailed, JobLog
from osmosis.jobs.trainer.environment import TrainerBuilder, TrainerEnvironment


class NoTorch(Exception):
    """There is no CPU build of torch here; the text says why."""


def trainer_environment(cache_dir: Path, log: JobLog | None = None) -> TrainerEnvironment:
    """The environment in `cache_dir`, made when it is not there yet. Raises NoTorch."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise NoTorch("there is no uv on this machine")
    builder = TrainerBuilder(uv, cache_dir, build_wheel(cache_dir), os.environ, log or JobLog(), torch="cpu")
    try:
        return asyncio.run(builder.environment())
    except JobFailed as problem:
        raise NoTorch(problem.message) from problem


def trainer_environ(trainer: TrainerEnvironment) -> dict[str, str]:
    """The variables with which tests run the trainer's Python."""
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    path = os.pathsep.join(
        filter(None, [str(trainer.code), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    return {**os.environ, **quiet, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{trainer_environment(Path(sys.argv[1])).python}\n")
    except NoTorch as reason:
        sys.exit(str(reason))
