"""A merge: an adapter of the store added into its base model, which becomes a new base model of the store.

Done in the trainer's environment; the files appear under their final name when they are whole, and the platform checks
them as it checks an upload. Torch is never in this process.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from osmosis.base.files import write_text
from osmosis.base.model_folder import model_files
from osmosis.client.models import announced
from osmosis.records.contract.job_messages import JobModel
from osmosis.records.contract.model_bodies import AnnouncedFile
from osmosis.records.report import Report
from osmosis.records.rollout import Category
from osmosis.records.run import JobResult, ModelJob, Stage
from osmosis.records.run_status import RunStatus
from osmosis.training.link.serving_plan import MergePlan, MergeResult

from .base_model import base_model_folder
from .boundary import Boundary
from .commands import run_command
from .job import TAIL_LINES, JobContext, setup_failed
from .trainer_environment import TrainerEnvironment, trainer_environment_of
from .trainer_process import trainer_environ

MODULE = "osmosis.training.trainer.merging"
STEP = "merge"
MERGE_S = 6 * 3600.0


class MergeWork:
    """The work of a job of kind `merge`."""

    def __init__(
        self, context: JobContext, job: ModelJob, *, made: TrainerEnvironment | None = None, module: str = MODULE
    ) -> None:
        self.context = context
        self.job = job
        self._made = made
        self._module = module

    @classmethod
    def of(cls, context: JobContext) -> MergeWork:
        """The work of a job of kind `merge`."""
        if not isinstance(context.spec.config, ModelJob):
            raise setup_failed("this job names no model", category=Category.UNKNOWN)
        return cls(context, context.spec.config)

    async def go(self) -> JobResult:
        """Merges, and tells the platform of the files. Raises `JobFailed`."""
        context, job = self.context, self.job
        context.enter(Stage.MERGE, f"merging {job.model} into its base model")
        output = Path(job.output_dir)
        if not output.is_dir():
            await self._merge(output)
        files = await asyncio.to_thread(_files, output)
        await context.reporter.tell("model", JobModel(files=files))
        context.log.write(STEP, f"{context.spec.run_name} is a model of {len(files)} files")
        return JobResult(status=RunStatus.FINISHED)

    async def _merge(self, output: Path) -> None:
        context = self.context
        made = self._made or await trainer_environment_of(context)
        base = await base_model_folder(context, made.python)
        folder, aside = context.work_dir / STEP, output.with_name(f".making-{output.name}")
        await asyncio.to_thread(shutil.rmtree, aside, True)
        folder.mkdir(parents=True, exist_ok=True)
        aside.mkdir(parents=True)
        boundary = Boundary.of_model(context.spec)
        context.log.write(STEP, f"sandbox of the merge: {boundary.describe}")
        read = (made.code, base, Path(context.spec.adapter_path or base))
        plan = MergePlan(
            model_path=str(base),
            adapter_path=context.spec.adapter_path,
            output_dir=str(aside),
            dtype=self.job.dtype,
            own_dtype=_own_dtype(base),
        )
        write_text(folder / "plan.json", plan.model_dump_json(indent=1))
        try:
            done = await run_command(
                (str(made.python), "-m", self._module, str(folder / "plan.json")),
                cwd=folder,
                environ=trainer_environ(context.environ, made.code),
                timeout_s=MERGE_S,
                log=context.log.stream(STEP, "debug"),
                started=context.leftovers.add,
                policy=boundary.of_process(made.python, read, (folder, aside)),
            )
            result = _result(folder / MergeResult.FILE)
            if result is None or result.failure or not done.ok:
                result = result or MergeResult(failure=f"its process ended with exit code {done.code}")
                tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
                what = f"{self.job.model} could not be merged: {result.failure}"
                raise setup_failed(what, fix=result.fix, category=Category.UNKNOWN, tail=tail)
            aside.rename(output)
        finally:
            await asyncio.to_thread(shutil.rmtree, aside, True)
        words = f"{result.parameters / 1e6:.1f} M parameters in {result.dtype}"
        context.log.write(STEP, f"merged: {words}; log-probabilities differ by at most {result.difference:.1e}")

    def report(self) -> Report | None:
        """A merge has no figures."""
        return None

    def stop(self) -> float:
        """Nothing is kept of a merge that is cut off."""
        return 0.0


def _files(folder: Path) -> list[AnnouncedFile]:
    return [announced(path) for path in model_files(folder)]


def _result(file: Path) -> MergeResult | None:
    try:
        return MergeResult.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def _own_dtype(base: Path) -> str:
    """As the base model's config says it, by its newer or older name."""
    config = json.loads((base / "config.json").read_bytes())
    return str(config.get("dtype") or config.get("torch_dtype") or "")
