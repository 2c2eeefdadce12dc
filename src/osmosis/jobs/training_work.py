"""A training run: the stages of its rollout server (`server_stages`), the trainer's environment, the trainer's steps.

The job decides nothing about learning: the trainer says which rollouts a step needs, `training.driver` runs them, and
`trainer_lives` starts a trainer that died again. Here is what surrounds that: what the platform lacks of an earlier job
of this run is told to it, a stop saves a checkpoint, and every way to end is a result.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import orjson

from osmosis.base.machine import gpus
from osmosis.base.tasks import end, until_one
from osmosis.records.config import TrainingConfig
from osmosis.records.contract.job_messages import JobRewind
from osmosis.records.keys import Key
from osmosis.records.report import Report
from osmosis.records.rollout import Category
from osmosis.records.run import CheckpointReport, JobResult, MetricPoint, Stage
from osmosis.records.run_status import RunStatus
from osmosis.sandbox import Policy
from osmosis.training.curves import Curves
from osmosis.training.driver import TrainingRun
from osmosis.training.failures import TrainingRunFailed
from osmosis.training.link import Checkpointed, Done, TrainerLink, TrainerPlan
from osmosis.training.step_journal import StepJournal, name_of, stored_steps
from osmosis.training.trained_model import TrainedModel

from .artifact_sender import ArtifactSender
from .base_model import base_model_folder, tokenizer_folder
from .boundary import Boundary
from .job import JobContext, JobFailed, setup_failed
from .job_rows import JobRows
from .open_gate import check_reach, opened_gate
from .platform_folders import CheckpointSender, fetch_checkpoints, fetch_model
from .server_elsewhere import ServerElsewhere
from .server_pool import ServerPool
from .server_stages import PreparedRollout, ServerStages
from .trainer_environment import trainer_environment_of
from .trainer_lives import TrainerLives, complete_checkpoints, newest_checkpoint
from .trainer_process import TrainerCommand, TrainerProcess, trainer_environ
from .training_examples import examples_of
from .training_settings import as_begun, rollout_plan, trainer_plan

STEP = "training"
SAVE_S = 300.0
"""How long a stop waits for the trainer's checkpoint."""
AT_ONCE = 100
"""Rollouts of an earlier job that are read at once."""
PLACES = ("model", "tokenizer")
"""Folders that are no checkpoints."""
MakeTrainer = Callable[[JobContext], Awaitable[TrainerCommand]]


async def build_trainer(context: JobContext) -> TrainerCommand:
    """The real one, in an environment that is made once for the machine."""
    context.enter(Stage.ENVIRONMENT, "preparing the trainer's environment")
    config = context.spec.config
    elsewhere = isinstance(config, TrainingConfig) and config.advanced.engine == "tinker"
    made = await trainer_environment_of(context, *(["tinker"] if elsewhere else []))
    return TrainerCommand(made.python, made.code)


class TrainingWork:
    """The training of one job."""

    def __init__(
        self, context: JobContext, config: TrainingConfig, *, make_trainer: MakeTrainer = build_trainer
    ) -> None:
        self.context = context
        self.config = config
        self._make_trainer = make_trainer
        self._models_dir = Path(context.spec.models_dir or context.work_dir / "models")
        self._steps_dir = context.work_dir / "steps"
        self._lives: TrainerLives | None = None
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, context: JobContext) -> TrainingWork:
        """The work of a job of kind `training`."""
        config = context.spec.config
        if not isinstance(config, TrainingConfig):
            raise setup_failed("the config of this run is not that of a training", category=Category.UNKNOWN)
        return cls(context, config)

    async def go(self) -> JobResult:
        """All stages. Raises `JobFailed` with the failure that ends the run."""
        count = len(await asyncio.to_thread(gpus, self.context.environ))
        newly = await self._bring() if self.context.spec.elsewhere else False
        examples = await examples_of(self.context, self.config) if self.config.advanced.method == "sft" else None
        plan = trainer_plan(self.config, self.context.spec, models_dir=self._models_dir, gpus=count, examples=examples)
        plan = await asyncio.to_thread(self._same_plan, plan, count)
        check_reach(self.context.spec.gate, self._urls)
        stages = ServerStages(self.context, withheld=trusted_secrets(self.config))
        found = None if self._urls else await stages.checkout()
        command = await self._make_trainer(self.context)
        plan = plan.model_copy(update=await self._paths(command, plan))
        prepared = await stages.prepare(found) if found is not None else None
        if self.context.spec.elsewhere:
            await self._go_back(newly)
        rows = await JobRows.read(self.context)
        servers = await self._servers(stages, prepared)
        try:
            async with CheckpointSender(self.context) as checkpoints, ArtifactSender(self.context) as artifacts:
                done = await self._train(plan, command, servers, rows, _Told(self, plan, checkpoints, artifacts))
        except TrainingRunFailed as problem:
            raise JobFailed(problem.failure) from problem
        finally:
            await servers.stop()
        await self.context.reporter.heartbeat(self.context.progress)  # a quick run ends before the next one
        return JobResult(status=RunStatus.STOPPED if done.stopped else RunStatus.FINISHED)

    async def _bring(self) -> bool:
        """What the run needs of the platform's disk, to this one. Whether another machine's checkpoint came."""
        context, there = self.context, await self.context.reporter.folders()
        places: dict[str, object] = {}
        for folder in there:
            if folder.name in context.spec.folders:
                places[f"{folder.name}_path"] = str(await fetch_model(context, folder))
        context.spec = context.spec.model_copy(update=places)
        saved = [folder for folder in there if folder.name not in PLACES]
        keep = self.config.checkpoints.keep is not None
        return await fetch_checkpoints(context, saved, self._models_dir, keep=keep)

    async def _go_back(self, newly: bool) -> None:
        """Rollouts teach with their tokens, which only the disk has on which they were made: what is on no disk of this
        job, and comes after the checkpoint that it goes on from, is forgotten and done again."""
        found = await asyncio.to_thread(newest_checkpoint, self._models_dir, lambda _: None)
        step = found.step if found else -1
        here = stored_steps(self._steps_dir)
        if newly:
            for kind, number in here:
                if number > step:
                    await asyncio.to_thread(shutil.rmtree, self._steps_dir / name_of(kind, number))
        known = await asyncio.to_thread(self._keys_here)
        if any(key[0] > step and key not in known for key in await self.context.reporter.stored()):
            await self.context.reporter.tell("rewind", JobRewind(step=step))

    def _keys_here(self) -> set[Key]:
        journals = [StepJournal(self._steps_dir, kind, step) for kind, step in stored_steps(self._steps_dir)]
        return {rollout.key for journal in journals for rollout in journal.rollouts()}

    def _same_plan(self, plan: TrainerPlan, count: int) -> TrainerPlan:
        """The plan that the run's checkpoint was made by, where only the machine's GPUs would make it another one.
        Raises `JobFailed` when this machine has fewer than that plan takes."""
        found = newest_checkpoint(self._models_dir, lambda _: None)
        return plan if found is None else as_begun(plan, found.fingerprint, gpus=count)

    @property
    def _urls(self) -> list[str]:
        """Of the rollout servers elsewhere; none when they are this job's own."""
        named = self.config.advanced.rollout_servers
        return named if isinstance(named, list) else []

    async def _servers(self, stages: ServerStages, prepared: PreparedRollout | None) -> ServerPool:
        """The rollout servers: this job's own, healthy, or those elsewhere, as far as they are there."""
        context, named = self.context, self.config.advanced.rollout_servers
        if prepared is not None:
            return await stages.start_pool(prepared, named if isinstance(named, int) else 1)
        context.enter(Stage.START, f"asking the rollout servers: {', '.join(self._urls)}")
        context.progress.sandbox = "the rollouts are on servers elsewhere, with what these have"
        key = self._secret("rollout_server_key_env", self.config.advanced.rollout_server_key_env)
        servers = [ServerElsewhere(url, key, context.log) for url in self._urls]
        await asyncio.gather(*(server.check() for server in servers))
        return ServerPool(servers, context.log)

    async def _paths(self, command: TrainerCommand, plan: TrainerPlan) -> dict[str, str]:
        """Folders for the plan's names: what is on the hub is fetched first, because the trainer reaches no network."""
        python = Path(command.argv[0])
        if plan.engine == "tinker":
            return {"tokenizer_path": str(await tokenizer_folder(self.context, self.config, python))}
        if "/" not in plan.model_path or Path(plan.model_path).is_dir():
            return {}
        return {"model_path": str(await base_model_folder(self.context, python))}

    def report(self) -> Report | None:
        """None: what a training run has to show is its curves."""
        return None

    def stop(self) -> float:
        """The trainer saves a checkpoint; before it trains there is nothing to save."""
        if self._lives is None or not self._lives.saves:
            return 0.0
        self._stopping = asyncio.create_task(self._lives.stop())
        return SAVE_S

    async def _train(
        self, plan: TrainerPlan, command: TrainerCommand, servers: ServerPool, rows: JobRows, told: _Told
    ) -> Done:
        context = self.context
        context.enter(Stage.TRAINING, _words(self.config.experiment.model_path, plan))
        context.advance(0, plan.steps)
        curves = Curves(context.work_dir / "metrics.jsonl")
        await self._tell_what_is_here(curves, told)
        run = TrainingRun(
            plan=rollout_plan(self.config, context.spec),
            read_rows=rows.at,
            steps=self._steps_dir,
            curves=curves,
            listener=told,
            hashes={"agent": context.spec.commit_sha},
            redactor=context.redactor,
        )
        key = self._secret("api_key_env", engine_secret(self.config))
        environ = trainer_environ(context.environ, command.code, secret=key)
        policy = self._policy(command, plan)
        process = TrainerProcess(command, environ, context.work_dir / "trainer", context.log, context.leftovers, policy)
        try:
            async with TrainerLink(process.socket) as link:
                model = TrainedModel(link, self.config.experiment.model_path, seed=plan.seed)
                self._lives = told.lives = TrainerLives(run, plan, process, link, model, context.log)
                return await self._served(self._lives, run, model, servers)
        finally:
            await process.close()

    def _policy(self, command: TrainerCommand, plan: TrainerPlan) -> Policy:
        """What the trainer's process may read and change: the model, the examples, this run's checkpoints."""
        elsewhere = plan.engine != "trl" or plan.sampler != "builtin"
        boundary = Boundary.of_trainer(self.context.spec, elsewhere=elsewhere)
        self.context.log.write(STEP, f"sandbox of the trainer: {boundary.describe}")
        named = (plan.model_path, plan.tokenizer_path, plan.examples_path, plan.resume_from)
        read = [Path(name) for name in named if name and Path(name).is_absolute()]
        output = Path(plan.output_dir)
        output.mkdir(parents=True, exist_ok=True)
        return boundary.of_process(Path(command.argv[0]), (command.code, *read), (output,))

    async def _served(self, lives: TrainerLives, run: TrainingRun, model: TrainedModel, servers: ServerPool) -> Done:
        """The training, or the failure of the rollout servers under it."""
        at, elsewhere = self.context.spec.gate, bool(self._urls)
        async with (
            opened_gate(model, at, elsewhere=elsewhere, sandboxes=servers.sandboxes) as gate,
            servers.running(gate, run.plan) as rollout,
        ):
            training = asyncio.create_task(lives.until_done(rollout))
            try:
                await until_one(training, servers.failed)
                if training.done():
                    return training.result()
                raise servers.failed.result()
            finally:
                await end(training)

    def _secret(self, key: str, name: str | None) -> str | None:
        """The value of a secret that `[advanced]` names, for this job alone."""
        if name is None:
            return None
        if name not in self.context.secrets:
            raise setup_failed(
                f"[advanced].{key} names {name}, which is not among the secrets of the run",
                fix=f"add it to [secrets].required and store its value: `osmosis secret set {name}`",
                category=Category.AUTH,
            )
        return self.context.secrets[name]

    async def _tell_what_is_here(self, curves: Curves, told: _Told) -> None:
        """What an earlier job of this run stored and the platform may lack: rollouts, figures, checkpoints."""
        reporter = self.context.reporter
        there = await reporter.stored()
        sent, lacking = 0, self._lacking(there)
        while some := await asyncio.to_thread(lambda: list(islice(lacking, AT_ONCE))):
            for line in some:
                reporter.rollout(line)
            sent += len(some)
            await self.context.room()
        if points := curves.points():
            reporter.metrics(points)
        for folder, manifest in await asyncio.to_thread(complete_checkpoints, self._models_dir, told.warn):
            told.checkpoint(
                Checkpointed(step=manifest.step, path=str(folder), kind=manifest.kind, reward=manifest.reward)
            )
        if stored := len(there) + sent:
            self.context.log.write(STEP, f"resuming: {stored} rollouts are stored, {sent} are sent again")

    def _lacking(self, there: set[Key]) -> Iterator[bytes]:
        """The rollouts on this disk that the platform does not have."""
        for kind, step in stored_steps(self._steps_dir):
            journal = StepJournal(self._steps_dir, kind, step, redactor=self.context.redactor)
            yield from (line for rollout, line in journal.plain_lines() if rollout.key not in there)


class _Told:
    """The driver's listener: everything to the platform and into the log."""

    def __init__(
        self, work: TrainingWork, plan: TrainerPlan, checkpoints: CheckpointSender, artifacts: ArtifactSender
    ) -> None:
        self._context = work.context
        self._checkpoints = checkpoints
        self._artifacts = artifacts
        self._plan = plan
        self.lives: TrainerLives | None = None

    def rollout(self, line: bytes) -> None:
        self._context.reporter.rollout(line)
        if self._context.spec.elsewhere:
            self._artifacts.put(str(orjson.loads(line)["rollout_id"]))

    def points(self, points: Sequence[MetricPoint]) -> None:
        self._context.reporter.metrics(points)

    def checkpoint(self, saved: Checkpointed) -> None:
        self._checkpoints.put(
            CheckpointReport(
                step=saved.step,
                path=saved.path,
                kind=saved.kind,
                reward=saved.reward,
                removed=saved.removed,
            )
        )
        self._step(saved.step)
        reward = "" if saved.reward is None else f", reward {saved.reward:.3f}"
        self._context.log.write(STEP, f"checkpoint of step {saved.step}{reward}{' (the best)' if saved.best else ''}")

    def step_done(self, step: int) -> None:
        self._step(step)

    def say(self, text: str, *, alarm: bool = False) -> None:
        self._context.log.write(STEP, text, "warning" if alarm else "info")

    def warn(self, text: str) -> None:
        """Something that is not as it should be, and does no harm."""
        self.say(text, alarm=True)

    async def room(self) -> None:
        await self._context.room()

    def _step(self, step: int) -> None:
        if self.lives is not None:
            self.lives.step = max(self.lives.step, step)
        if step >= self._context.progress.completed:
            self._context.advance(step, self._plan.steps)


def trusted_secrets(config: TrainingConfig) -> list[str]:
    """The names of those that no rollout gets."""
    names = (engine_secret(config), config.advanced.rollout_server_key_env)
    return [name for name in names if name is not None]


def engine_secret(config: TrainingConfig) -> str | None:
    """The name of the secret that is for the trainer alone: of the server that it trains on, or asks for samples."""
    elsewhere = config.advanced.engine == "tinker" or config.advanced.sampler == "vllm"
    return config.advanced.api_key_env if elsewhere else None


def _words(model: str, plan: TrainerPlan) -> str:
    if plan.method == "sft":
        return f"training {model}: {plan.steps} steps of {plan.rows_per_step} examples"
    held_out = f", {len(plan.validation_rows)} rows held out" if plan.validation_rows else ""
    rollouts = f"{plan.rows_per_step} rows x {plan.samples_per_row} rollouts"
    return f"training {model}: {plan.steps} steps of {rollouts} from {len(plan.rows)} rows{held_out}"
