"""A training job whose trainer has no model: `python -m osmosis.testing.fake_training_job FOLDER`.

Everything but the trainer is real: checkout, environment, rollout server, proxy, driver, reports. The trainer is
`osmosis.testing.fake_trainer`, a process of its own that speaks the real protocol and saves real, empty checkpoints.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import osmosis
from osmosis.jobs.job import JobContext
from osmosis.jobs.runner import Exit, JobRunner
from osmosis.jobs.trainer_process import TrainerCommand
from osmosis.jobs.training_work import TrainingWork
from osmosis.records.config import TrainingConfig
from osmosis.records.run import Handover, JobSpec


async def make_trainer(context: JobContext) -> TrainerCommand:
    """This Python, and the trainer without a model."""
    code = Path(osmosis.__file__).parent.parent
    return TrainerCommand(Path(sys.executable), code, module="osmosis.testing.fake_trainer")


def work_of(context: JobContext) -> TrainingWork:
    """The work of a training job, but for its trainer."""
    config = context.spec.config
    assert isinstance(config, TrainingConfig)
    return TrainingWork(context, config, make_trainer=make_trainer)


async def run(folder: Path, handover: Handover) -> Exit:
    """The job to its end."""
    spec = JobSpec.model_validate_json((folder / "job.json").read_bytes())
    job = JobRunner(spec, handover, dict(os.environ), kinds={"training": work_of})
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, job.stop)
    return await job.go()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]), Handover.model_validate_json(sys.stdin.buffer.read()))))
