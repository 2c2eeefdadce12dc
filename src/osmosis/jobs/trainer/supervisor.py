"""Keep the trainer of a job alive: restart it from its newest checkpoint when it dies. The steps since that checkpoint
are replayed from their stored rollouts, so a death costs only their updates. A trainer that keeps dying without
finishing a step ends the run."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from osmosis.base.processes import end_tasks
from osmosis.engine.agent import Agent
from osmosis.errors import ModelError, ValidationError
from osmosis.jobs.context import JobLog
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.training.driver import TrainingDriver, TrainingRun
from osmosis.training.failures import FIXES, TrainerLost, TrainingRunFailed
from osmosis.training.models import TrainedModel
from osmosis.training.protocol import CheckpointManifest, Done, TrainerClient, TrainerPlan, read_manifest

from .process import STEP, TrainerProcess

MAX_DEATHS_IN_A_ROW = 3
LAST_EVENTS_S = 5.0
HEALTH_INTERVAL_S = 0.5


class TrainerSupervisor:
    def __init__(
        self,
        run: TrainingRun,
        plan: TrainerPlan,
        process: TrainerProcess,
        client: TrainerClient,
        model: TrainedModel,
        log: JobLog,
    ) -> None:
        self._run = run
        self._plan = plan
        self._process = process
        self._client = client
        self._model = model
        self._log = log
        self._driver: TrainingDriver | None = None
        self._stopping = False
        self.step = 0

    async def run(self, agent: Agent) -> Done:
        deaths = 0
        while True:
            first_step = self.step
            try:
                return await self._run_once(agent)
            except TrainerLost as lost:
                deaths = 1 if self.step > first_step else deaths + 1
                reason = self._process.exit_description if self._process.ended else lost.message
                if deaths >= MAX_DEATHS_IN_A_ROW:
                    raise self._give_up(reason) from lost
                if self._stopping:
                    return Done(step=self.step, stopped=True)
                self._log.write(STEP, f"the trainer ended with {reason}: starting it again", "warning")
            finally:
                self._driver = None
                await self._process.stop()

    @property
    def can_save(self) -> bool:
        return self._driver is not None

    async def stop(self) -> None:
        self._stopping = True
        if self._driver is not None:
            try:
                await self._driver.stop()
            except TrainerLost:
                pass  # the driver notices it, too

    async def _run_once(self, agent: Agent) -> Done:
        """Start the trainer and drive it to its last event. Raise `TrainerLost` when it has none."""
        checkpoint = await asyncio.to_thread(find_newest_checkpoint, Path(self._plan.output_dir), self._warn)
        resume_from = str(Path(self._plan.output_dir) / f"step-{checkpoint.step:06d}") if checkpoint else None
        start = f" from the checkpoint of step {checkpoint.step}" if checkpoint else ""
        self._log.write(STEP, f"starting the trainer{start}")
        self._model.lost.clear()
        await self._process.start(self._plan.model_copy(update={"resume_from": resume_from}))
        self._driver = driver = TrainingDriver(self._run, self._client, self._model, agent)
        driving = asyncio.create_task(self._drive(driver))
        death = asyncio.create_task(self._process.wait_died())
        logging = asyncio.create_task(self._log_model_facts())
        try:
            await asyncio.wait({driving, death}, return_when=asyncio.FIRST_COMPLETED)
            if not driving.done():
                await asyncio.wait({driving}, timeout=LAST_EVENTS_S)
            if not driving.done():
                raise TrainerLost(self._process.exit_description)
            return driving.result()
        finally:
            await end_tasks(driving, death, logging)

    async def _drive(self, driver: TrainingDriver) -> Done:
        try:
            await self._client.wait_up()
        except ModelError as error:
            raise TrainerLost(error.message) from error
        return await driver.run()

    async def _log_model_facts(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            try:
                facts = (await self._client.health()).model
            except ModelError:
                continue
            if facts is not None:
                break
        trainable = facts.trainable_parameters / max(1, facts.parameters + facts.trainable_parameters)
        libraries = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
        self._log.write(
            STEP,
            f"loaded {facts.architecture}: {facts.parameters / 1e6:,.1f} million parameters, {trainable:.1%} of them "
            f"trained, {facts.dtype} on {facts.device}; {libraries}",
        )

    def _warn(self, text: str) -> None:
        self._log.write(STEP, text, "warning")

    def _give_up(self, reason: str) -> TrainingRunFailed:
        message = (
            f"the trainer ended {MAX_DEATHS_IN_A_ROW} times in a row without finishing a step, "
            f"the last time with {reason}"
        )
        category, fix = Category.SERVER_DIED, "its last output is in the run's log; `osmosis train resume` tries again"
        if self._process.was_killed:
            message = f"{message}; most likely the machine's memory ran out"
            category, fix = Category.BUDGET, FIXES["memory"]
        tail = "\n".join(self._process.tail) or None
        return TrainingRunFailed(
            Failure(phase=Phase.MODEL, category=category, message=message, traceback=tail, fix=fix)
        )


def list_checkpoints(models_dir: Path, warn: Callable[[str], None]) -> list[tuple[Path, CheckpointManifest]]:
    checkpoints = []
    for folder in sorted(models_dir.glob("step-*")) if models_dir.is_dir() else ():
        try:
            checkpoints.append((folder, read_manifest(folder)))
        except ValidationError as problem:
            warn(f"{problem.message}: it is left out")
    return checkpoints


def find_newest_checkpoint(models_dir: Path, warn: Callable[[str], None] = lambda _: None) -> CheckpointManifest | None:
    checkpoints = list_checkpoints(models_dir, warn)
    return checkpoints[-1][1] if checkpoints else None
