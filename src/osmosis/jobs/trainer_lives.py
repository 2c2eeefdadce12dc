"""The trainer of a job, kept alive: started, driven, and when it dies started again from its newest checkpoint.

The steps since that checkpoint are replayed from what is stored of them, so a death costs their updates and nothing
else. A trainer that dies again and again without finishing a step ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from osmosis.base.tasks import end
from osmosis.engine.task import RolloutFn
from osmosis.errors import ModelError, ValidationError
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.training.driver import TrainingDriver, TrainingRun
from osmosis.training.failures import FIXES, TrainerLost, TrainingRunFailed
from osmosis.training.link import CheckpointManifest, Done, TrainerLink, TrainerPlan, read_manifest
from osmosis.training.trained_model import TrainedModel

from .job import JobLog
from .trainer_process import STEP, TrainerProcess

DEATHS_IN_A_ROW = 3
LAST_WORDS_S = 5.0
"""How long the last events of a trainer that has ended may take to be read."""
LOOK_EVERY_S = 0.5


class TrainerLives:
    """Use `until_done`; `stop` at any time."""

    def __init__(
        self,
        run: TrainingRun,
        plan: TrainerPlan,
        process: TrainerProcess,
        link: TrainerLink,
        model: TrainedModel,
        log: JobLog,
    ) -> None:
        self._run = run
        self._plan = plan
        self._process = process
        self._link = link
        self._model = model
        self._log = log
        self._driver: TrainingDriver | None = None
        self._stopping = False
        self.step = 0
        """The last finished step; whoever hears of steps keeps it."""

    async def until_done(self, rollout: RolloutFn) -> Done:
        """The trainer's last event. Raises `TrainingRunFailed`."""
        deaths = 0
        while True:
            begun_at = self.step
            try:
                return await self._live(rollout)
            except TrainerLost as lost:
                deaths = 1 if self.step > begun_at else deaths + 1
                how = self._process.how if self._process.ended else lost.message
                if deaths >= DEATHS_IN_A_ROW:
                    raise self._gave_up(how) from lost
                if self._stopping:
                    return Done(step=self.step, stopped=True)
                self._log.write(STEP, f"the trainer ended with {how}: starting it again", "warning")
            finally:
                self._driver = None
                await self._process.stop()

    @property
    def saves(self) -> bool:
        """Whether a stop has something to save."""
        return self._driver is not None

    async def stop(self) -> None:
        """Asks for a checkpoint and the end; `until_done` then returns."""
        self._stopping = True
        if self._driver is not None:
            try:
                await self._driver.stop()
            except TrainerLost:
                pass  # the driver hears of it, too

    async def _live(self, rollout: RolloutFn) -> Done:
        """One life, to its last event. Raises `TrainerLost` when it had none."""
        found = await asyncio.to_thread(newest_checkpoint, Path(self._plan.output_dir), self._tell)
        resume = str(Path(self._plan.output_dir) / folder_name(found)) if found else None
        self._log.write(STEP, f"starting the trainer{f' from the checkpoint of step {found.step}' if found else ''}")
        self._model.lost.clear()
        await self._process.start(self._plan.model_copy(update={"resume_from": resume}))
        self._driver = driver = TrainingDriver(self._run, self._link, self._model, rollout)
        living = asyncio.create_task(self._driven(driver))
        dying = asyncio.create_task(self._process.wait_died())
        introducing = asyncio.create_task(self._introduce())
        try:
            await asyncio.wait({living, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not living.done():
                await asyncio.wait({living}, timeout=LAST_WORDS_S)
            if not living.done():
                raise TrainerLost(self._process.how)
            return living.result()
        finally:
            await end(living, dying, introducing)

    async def _driven(self, driver: TrainingDriver) -> Done:
        try:
            await self._link.wait_up()
        except ModelError as error:
            raise TrainerLost(error.message) from error
        return await driver.run()

    async def _introduce(self) -> None:
        """Says what was loaded, as soon as it is."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                facts = (await self._link.health()).model
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

    def _tell(self, text: str) -> None:
        self._log.write(STEP, text, "warning")

    def _gave_up(self, how: str) -> TrainingRunFailed:
        what = f"the trainer ended {DEATHS_IN_A_ROW} times in a row without finishing a step, the last time with {how}"
        category, fix = Category.SERVER_DIED, "its last output is in the run's log; `osmosis train resume` tries again"
        if self._process.killed:
            what = f"{what}; most likely the machine's memory ran out"
            category, fix = Category.BUDGET, FIXES["memory"]
        tail = "\n".join(self._process.tail) or None
        return TrainingRunFailed(Failure(phase=Phase.MODEL, category=category, message=what, traceback=tail, fix=fix))


def complete_checkpoints(models_dir: Path, tell: Callable[[str], None]) -> list[tuple[Path, CheckpointManifest]]:
    """Every complete checkpoint of a run, by step; `tell` hears why another is none."""
    found = []
    for folder in sorted(models_dir.glob("step-*")) if models_dir.is_dir() else ():
        try:
            found.append((folder, read_manifest(folder)))
        except ValidationError as problem:
            tell(f"{problem.message}: it is left out")
    return found


def newest_checkpoint(models_dir: Path, tell: Callable[[str], None]) -> CheckpointManifest | None:
    """From which a run goes on; None at its beginning."""
    found = complete_checkpoints(models_dir, tell)
    return found[-1][1] if found else None


def folder_name(manifest: CheckpointManifest) -> str:
    return f"step-{manifest.step:06d}"
