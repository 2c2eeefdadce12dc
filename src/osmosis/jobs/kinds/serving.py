import asyncio
import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.processes import wait_for_first
from osmosis.base.redact import Redactor
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import Job, JobContext, JobLog
from osmosis.jobs.models import LocalModelProcess, ServingProgram, open_local_model
from osmosis.jobs.reporter import Reporter
from osmosis.records.run.job import JobResult, JobSpec, LogLine, ModelJob, Stage
from osmosis.records.run.plan import PLATFORM_MODEL, ModelSpec
from osmosis.records.run.status import RunStatus
from osmosis.serve.client.model_http import InferenceEndpoint

DRAIN_S = 15.0
CONCURRENCY = 256
TIME_LIMIT_S = 900.0


class ServingJob(Job):
    def __init__(self, context: JobContext, job: ModelJob, *, program: ServingProgram | None = None) -> None:
        self.context = context
        self.job = job
        self._program = program
        self._stopping = asyncio.Event()

    @classmethod
    def from_context(cls, context: JobContext) -> "ServingJob":
        return cls(context, context.config_of(ModelJob, "this job names no model"))

    async def run(self) -> JobResult:
        context, name = self.context, self.job.model
        context.enter(Stage.START, f"loading the model {name}")
        spec = ModelSpec.parse(PLATFORM_MODEL + name)
        async with open_local_model(context, spec, concurrency=CONCURRENCY, program=self._program) as model:
            endpoint = InferenceEndpoint(
                model, name=name, key=context.handover.inference_key, on_answer=self._count, time_limit_s=TIME_LIMIT_S
            )
            context.progress.endpoint = await endpoint.open()
            context.enter(Stage.SERVING, f"serving {name}")
            try:
                await _wait_for_stop(self._stopping, model)
                context.enter(Stage.REPORT, f"stopping after {endpoint.answered} answers")
                await endpoint.drained(DRAIN_S)
            finally:
                context.progress.endpoint = ""
                await endpoint.close()
        return JobResult(status=RunStatus.STOPPED)

    def stop(self) -> float:
        self._stopping.set()
        return DRAIN_S + 5.0 if self.context.progress.endpoint else 0.0

    def _count(self) -> None:
        self.context.progress.completed += 1
        self.context.changed.set()


async def _wait_for_stop(stop: asyncio.Event, model: LocalModelProcess) -> None:
    stopping = asyncio.create_task(stop.wait())
    try:
        await wait_for_first(stopping, model.failed)
    finally:
        stopping.cancel()
    if model.failed.done():
        raise model.failed.result()


KEY_PREFIX = "osl_"


@dataclass(frozen=True, slots=True)
class LocalModel:
    name: str
    model_path: str
    adapter_path: str = ""


@dataclass(frozen=True, slots=True)
class LocalServing:
    url: str
    key: str


async def serve_here(
    model: LocalModel,
    cache_dir: Path,
    environ: Mapping[str, str],
    *,
    port: int,
    log: Callable[[LogLine], None],
    ready: Callable[[LocalServing], None],
    stop: asyncio.Event,
    program: ServingProgram | None = None,
) -> int:
    """Serve until `stop`; return the number of answers. Raise `JobFailed` like `ServingJob.run`."""
    key = KEY_PREFIX + secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="osmosis-serve-") as work:
        context = _context(model, cache_dir, Path(work), environ, log, key)
        spec = ModelSpec.parse(PLATFORM_MODEL + model.name)
        async with open_local_model(context, spec, concurrency=CONCURRENCY, program=program) as process:
            endpoint = InferenceEndpoint(process, name=model.name, key=key, time_limit_s=TIME_LIMIT_S)
            url = await endpoint.open(port=port)
            try:
                ready(LocalServing(url, key))
                await _wait_for_stop(stop, process)
                await endpoint.drained(DRAIN_S)
            finally:
                await endpoint.close()
    return endpoint.answered


def _context(
    model: LocalModel, cache_dir: Path, work: Path, environ: Mapping[str, str], log: Callable[[LogLine], None], key: str
) -> JobContext:
    spec = JobSpec(
        run_id="local",
        run_name=model.name,
        kind="serving",
        config=ModelJob(model=model.name),
        work_dir=str(work),
        cache_dir=str(cache_dir),
        model_path=model.model_path,
        adapter_path=model.adapter_path,
    )
    redactor = Redactor([key])
    return JobContext(
        spec=spec,
        environ=environ,
        secrets={},
        log=JobLog(redactor, log),
        reporter=Reporter("", "local", key, redactor=redactor),
        redactor=redactor,
        leftovers=Leftovers(work),
    )
