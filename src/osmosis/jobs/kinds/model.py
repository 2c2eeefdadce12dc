import asyncio
import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.files import write_text
from osmosis.base.model_folder import list_model_files
from osmosis.base.processes import wait_for_first
from osmosis.base.redact import Redactor
from osmosis.client.files import announce_file
from osmosis.jobs.commands import Leftovers, run_command
from osmosis.jobs.context import TAIL_LINES, Job, JobContext, JobLog, setup_failure
from osmosis.jobs.models import LocalModelProcess, ServingProgram, base_model_folder, open_local_model
from osmosis.jobs.reporter import Reporter
from osmosis.jobs.sandboxes import JobSandbox
from osmosis.jobs.trainer.environment import TrainerEnvironment, load_trainer_environment
from osmosis.jobs.trainer.process import trainer_environ
from osmosis.records.api.workers import JobModel
from osmosis.records.run.job import JobResult, JobSpec, LogLine, ModelJob, Stage
from osmosis.records.run.plan import PLATFORM_MODEL, ModelSpec
from osmosis.records.run.rollout import Category
from osmosis.records.run.status import RunStatus
from osmosis.serve.client.model_http import InferenceEndpoint
from osmosis.training.protocol.plans import MergePlan, MergeResult

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


MODULE = "osmosis.training.trainer.merge_adapter"
STEP = "merge"
MERGE_S = 6 * 3600.0


@dataclass(eq=False, repr=False)
class MergeJob(Job):
    context: JobContext
    job: ModelJob
    environment: TrainerEnvironment | None = None
    module: str = MODULE

    @classmethod
    def from_context(cls, context: JobContext) -> "MergeJob":
        return cls(context, context.config_of(ModelJob, "this job names no model"))

    async def run(self) -> JobResult:
        context, job = self.context, self.job
        context.enter(Stage.MERGE, f"merging {job.model} into its base model")
        output = Path(job.output_dir)
        if not output.is_dir():
            await self._merge(output)
        files = await asyncio.to_thread(lambda: [announce_file(path) for path in list_model_files(output)])
        await context.reporter.post("model", JobModel(files=files))
        context.log.write(STEP, f"{context.spec.run_name} is a model of {len(files)} files")
        return JobResult(status=RunStatus.FINISHED)

    async def _merge(self, output: Path) -> None:
        context = self.context
        environment = self.environment or await load_trainer_environment(context)
        base = await base_model_folder(context, environment.python)
        folder, draft = context.work_dir / STEP, output.with_name(f".making-{output.name}")
        await asyncio.to_thread(shutil.rmtree, draft, True)
        folder.mkdir(parents=True, exist_ok=True)
        draft.mkdir(parents=True)
        sandbox = JobSandbox.for_model(context.spec)
        context.log.write(STEP, f"sandbox of the merge: {sandbox.description}")
        read = (environment.code, base, Path(context.spec.adapter_path or base))
        config = json.loads((base / "config.json").read_bytes())
        plan = MergePlan(
            model_path=str(base),
            adapter_path=context.spec.adapter_path,
            output_dir=str(draft),
            dtype=self.job.dtype,
            own_dtype=str(config.get("dtype") or config.get("torch_dtype") or ""),
        )
        write_text(folder / "plan.json", plan.model_dump_json(indent=1))
        try:
            done = await run_command(
                (str(environment.python), "-m", self.module, str(folder / "plan.json")),
                cwd=folder,
                environ=trainer_environ(context.environ, environment.code),
                timeout_s=MERGE_S,
                log=context.log.stream(STEP, "debug"),
                started=context.leftovers.add,
                policy=sandbox.process_policy(environment.python, read, (folder, draft)),
            )
            try:
                result = MergeResult.model_validate_json((folder / MergeResult.FILE).read_bytes())
            except (OSError, ValueError):
                result = None
            if result is None or result.failure or not done.ok:
                result = result or MergeResult(failure=f"its process ended with exit code {done.code}")
                tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
                message = f"{self.job.model} could not be merged: {result.failure}"
                raise setup_failure(message, fix=result.fix, category=Category.UNKNOWN, tail=tail)
            draft.rename(output)
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, True)
        size = f"{result.parameters / 1e6:.1f} M parameters in {result.dtype}"
        context.log.write(STEP, f"merged: {size}; log-probabilities differ by at most {result.difference:.1e}")
