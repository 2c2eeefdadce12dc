"""A deployment: a model of the store, loaded and served until somebody stops it.

The job answers chat completions on loopback, to the platform alone, which knows its address from the heartbeats and
its key from the lease that both of them hold (`inference_key`). It runs no rollout and is given no secret.
"""

from __future__ import annotations

import asyncio

from osmosis.base.tasks import until_one
from osmosis.records.plan import PLATFORM_MODEL, ModelSpec
from osmosis.records.report import Report
from osmosis.records.rollout import Category
from osmosis.records.run import JobResult, ModelJob, Stage
from osmosis.records.run_status import RunStatus
from osmosis.serve.drive.inference import InferenceEndpoint

from .job import JobContext, JobFailed, setup_failed
from .platform_model import ServingProgram, platform_model

DRAIN_S = 15.0
"""How long answers in flight may take after a stop."""
CONCURRENCY = 256
TIME_LIMIT_S = 900.0
"""Of one answer."""


class ServingWork:
    """The work of a job of kind `serving`."""

    def __init__(self, context: JobContext, job: ModelJob, *, program: ServingProgram | None = None) -> None:
        self.context = context
        self.job = job
        self._program = program
        self._stopping = asyncio.Event()

    @classmethod
    def of(cls, context: JobContext) -> ServingWork:
        """The work of a job of kind `serving`."""
        if not isinstance(context.spec.config, ModelJob):
            raise setup_failed("this job names no model", category=Category.UNKNOWN)
        return cls(context, context.spec.config)

    async def go(self) -> JobResult:
        """Serves until a stop. Raises `JobFailed` when the model cannot be loaded, or not be kept."""
        context, name = self.context, self.job.model
        context.enter(Stage.START, f"loading the model {name}")
        spec = ModelSpec.parse(PLATFORM_MODEL + name)
        async with platform_model(context, spec, concurrency=CONCURRENCY, program=self._program) as model:
            endpoint = InferenceEndpoint(
                model, name=name, key=context.handover.inference_key, on_answer=self._count, time_limit_s=TIME_LIMIT_S
            )
            context.progress.endpoint = await endpoint.start()
            context.enter(Stage.SERVING, f"serving {name}")
            try:
                await self._until_over(model.failed)
                context.enter(Stage.REPORT, f"stopping after {endpoint.answered} answers")
                await endpoint.drained(DRAIN_S)
            finally:
                context.progress.endpoint = ""
                await endpoint.stop()
        return JobResult(status=RunStatus.STOPPED)

    async def _until_over(self, failed: asyncio.Future[JobFailed]) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await until_one(stopping, failed)
        finally:
            stopping.cancel()
        if failed.done():
            raise failed.result()

    def report(self) -> Report | None:
        """A deployment has no figures."""
        return None

    def stop(self) -> float:
        """Nothing new is answered; what is in flight may finish. Before the model is loaded there is nothing."""
        self._stopping.set()
        return DRAIN_S + 5.0 if self.context.progress.endpoint else 0.0

    def _count(self) -> None:
        self.context.progress.completed += 1
        self.context.changed.set()
