"""The executor that a worker is told to use."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from osmosis.errors import UsageError
from osmosis.records.worker_config import WorkerConfig

from .any_scheduler import CommandExecutor
from .executor import Executor
from .local import LocalExecutor
from .ray import RayExecutor
from .slurm import SlurmExecutor

SLURM_PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo")


def executor_for(
    config: WorkerConfig,
    environ: Mapping[str, str],
    *,
    local_command: tuple[str, ...],
    folder: Path,
    sandboxed: bool = True,
) -> Executor:
    """`local_command` starts a job on this machine, where the config does not say what does; `folder` is the worker's.
    UsageError for one that cannot work here."""
    command, resources = config.job_command or list(local_command), config.resources
    if config.executor == "slurm":
        if missing := [
            program for program in SLURM_PROGRAMS if shutil.which(program, path=environ.get("PATH")) is None
        ]:
            raise UsageError(
                f"--executor slurm: {', '.join(missing)} not found",
                hint="start the worker on a machine from which jobs are submitted, such as the login node",
            )
        return SlurmExecutor(config.slurm, command, environ, folder=folder / "slurm", resources=resources)
    if config.executor == "ray":
        return RayExecutor(config.ray, command, environ, resources=resources)
    if config.executor == "command":
        if config.command is None:
            raise UsageError("--executor command: which commands?", hint="[command] of a file given with --config")
        return CommandExecutor(config.command, command, environ, resources=resources)
    return LocalExecutor(tuple(command), environ, folder=folder, sandboxed=sandboxed)
