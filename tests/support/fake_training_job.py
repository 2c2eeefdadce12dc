"""A training job, or a deployment, without a model: `python tests/support/run.py fake_training_job --run URL`.

Everything but the trainer is real: checkout, environment, rollout server, proxy, driver, reports. The trainer is
`support.fake_trainer`, a process of its own that speaks the real protocol and saves real, empty checkpoints;
what serves a model is `support.fake_serving`.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from osmosis.jobs.__main__ import JobAddress, load_job
from osmosis.jobs.context import JobContext
from osmosis.jobs.kinds.model import ServingJob
from osmosis.jobs.kinds.training import TrainingJob
from osmosis.jobs.runner import WORK, Exit, JobRunner
from osmosis.jobs.trainer.process import TrainerCommand
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.job import JobEntry, ModelJob

from . import TESTS, fake_serving


async def make_trainer(context: JobContext) -> TrainerCommand:
    """This Python, and the trainer without a model."""
    return TrainerCommand(Path(sys.executable), TESTS.parent, module="tests.support.fake_trainer")


def work_of(context: JobContext) -> TrainingJob:
    """The work of a training job, but for its trainer."""
    config = context.spec.config
    assert isinstance(config, TrainingConfig)
    return TrainingJob(context, config, make_trainer=make_trainer)


def serving_of(context: JobContext) -> ServingJob:
    """The work of a deployment, but for its model."""
    job = context.spec.config
    assert isinstance(job, ModelJob)
    return ServingJob(context, job, program=fake_serving.program())


async def run(url: str, entry: JobEntry) -> Exit:
    """The job to its end."""
    spec, handover = await load_job(JobAddress.parse(url), entry)
    job = JobRunner(spec, handover, dict(os.environ), kinds={**WORK, "training": work_of, "serving": serving_of})
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, job.stop)
    return await job.run()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[2], JobEntry.model_validate_json(sys.stdin.buffer.read()))))
