import shutil
from collections.abc import Mapping
from pathlib import Path

from osmosis.errors import UsageError
from osmosis.records.config.worker import WorkerConfig
from osmosis.worker.executors.command import CommandExecutor
from osmosis.worker.executors.executor import Executor
from osmosis.worker.executors.local import LocalExecutor
from osmosis.worker.executors.ray import RayExecutor
from osmosis.worker.executors.slurm import SlurmExecutor

SLURM_PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo")


def executor_for(
    config: WorkerConfig,
    environ: Mapping[str, str],
    *,
    local_command: tuple[str, ...],
    folder: Path,
    sandboxed: bool = True,
) -> Executor:
    command, resources = config.job_command or list(local_command), config.resources
    if config.executor == "slurm":
        if missing := [
            program for program in SLURM_PROGRAMS if shutil.which(program, path=environ.get("PATH")) is None
        ]:
            hint = "start the worker on a machine from which jobs are submitted, such as the login node"
            raise UsageError(f"--executor slurm: {', '.join(missing)} not found", hint=hint)
        return SlurmExecutor(config.slurm, command, environ, folder=folder / "slurm", resources=resources)
    if config.executor == "ray":
        return RayExecutor(config.ray, command, environ, resources=resources)
    if config.executor == "command":
        if config.command is None:
            raise UsageError("--executor command: which commands?", hint="[command] of a file given with --config")
        return CommandExecutor(config.command, command, environ, resources=resources)
    return LocalExecutor(tuple(command), environ, folder=folder, sandboxed=sandboxed)
