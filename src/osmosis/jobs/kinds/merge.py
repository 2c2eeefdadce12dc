import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.files import write_text
from osmosis.base.model_folder import list_model_files
from osmosis.client.datasets import announce_file
from osmosis.jobs.commands import run_command
from osmosis.jobs.context import TAIL_LINES, Job, JobContext, setup_failure
from osmosis.jobs.models import base_model_folder
from osmosis.jobs.sandboxes import JobSandbox
from osmosis.jobs.trainer.environment import TrainerEnvironment, load_trainer_environment
from osmosis.jobs.trainer.process import trainer_environ
from osmosis.records.api.workers import JobModel
from osmosis.records.run.job import JobResult, ModelJob, Stage
from osmosis.records.run.rollout import Category
from osmosis.records.run.status import RunStatus
from osmosis.training.protocol.plans import MergePlan, MergeResult

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
