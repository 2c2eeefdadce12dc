"""A training job, or a deployment, without a model: `python -m osmosis.testing.fake_training_job --run URL`.

Everything but the trainer is real: checkout, environment, rollout server, proxy, driver, reports. The trainer is
`osmosis.testing.fake_trainer`, a process of its own that speaks the real protocol and saves real, empty checkpoints;
what serves a model is `osmosis.testing.fake_serving`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import osmosis
from osmosis.jobs.entry import JobAddress, enter
from osmosis.jobs.job import JobContext
from osmosis.jobs.runner import Exit, JobRunner
from osmosis.jobs.serving_work import ServingWork
from osmosis.jobs.trainer_process import TrainerCommand
from osmosis.jobs.training_work import TrainingWork
from osmosis.records.config import TrainingConfig
from osmosis.records.run import JobEntry, ModelJob
from osmosis.testing import fake_serving


async def make_trainer(context: JobContext) -> TrainerCommand:
    """This Python, and the trainer without a model."""
    code = Path(osmosis.__file__).parent.parent
    return TrainerCommand(Path(sys.executable), code, module="osmosis.testing.fake_trainer")


def work_of(context: JobContext) -> TrainingWork:
    """The work of a training job, but for its trainer."""
    config = context.spec.config
    assert isinstance(config, TrainingConfig)
    return TrainingWork(context, config, make_trainer=make_trainer)


def serving_of(context: JobContext) -> ServingWork:
    """The work of a deployment, but for its model."""
    job = context.spec.config
    assert isinstance(job, ModelJob)
    return ServingWork(context, job, program=fake_serving.program())


async def run(url: str, entry: JobEntry) -> Exit:
    """The job to its end."""
    spec, handover = await enter(JobAddress.of(url), entry)
    job = JobRunner(spec, handover, dict(os.environ), kinds={"training": work_of, "serving": serving_of})
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, job.stop)
    return await job.go()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[2], JobEntry.model_validate_json(sys.stdin.buffer.read()))))
