"""A training run: its rollout servers, the trainer's environment and process, and what the platform lacks of it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice, zip_longest
from pathlib import Path

import orjson

from osmosis.base.hardware import gpu_names
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.engine.agent import Agent
from osmosis.jobs.artifacts import ArtifactSender, CheckpointSender, fetch_checkpoints, fetch_model
from osmosis.jobs.context import Job, JobContext, JobFailed, get_secret
from osmosis.jobs.exports import exporting, open_exports
from osmosis.jobs.models import base_model_folder, tokenizer_folder
from osmosis.jobs.prepare.checkout import JobRows
from osmosis.jobs.sandboxes import JobSandbox
from osmosis.jobs.server.pool import RemoteServer, ServerPool, check_reach, open_model_proxy
from osmosis.jobs.server.stages import PreparedRollout, ServerStages
from osmosis.jobs.trainer.environment import load_trainer_environment
from osmosis.jobs.trainer.process import (
    TrainerCommand,
    TrainerProcess,
    TrainerSupervisor,
    find_newest_checkpoint,
    list_checkpoints,
    trainer_environ,
)
from osmosis.jobs.trainer.settings import load_examples, rollout_plan, trainer_plan
from osmosis.jobs.trainer.vllm import GpuSplit, VllmProcesses, find_vllm
from osmosis.records.api.workers import JobRewind
from osmosis.records.config.advanced import TrainingAdvanced
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.job import ALARM, CheckpointReport, JobResult, MetricPoint, Stage
from osmosis.records.run.rollout import Category
from osmosis.records.run.rows import Key
from osmosis.records.run.status import RunStatus
from osmosis.training.collecting import MixedAgent, TrainingRun
from osmosis.training.failures import TrainingRunFailed
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Checkpointed, Done
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.step_journal import MetricsFile, StepJournal, list_stored_steps, step_folder_name

STEP = "training"
SAVE_TIMEOUT_S = 300.0
RESEND_BATCH = 100
MODEL_FOLDERS = ("model", "tokenizer", "teacher", "adapter")
MakeTrainer = Callable[[JobContext], Awaitable[TrainerCommand]]


async def make_trainer_command(context: JobContext) -> TrainerCommand:
    context.enter(Stage.ENVIRONMENT, "preparing the trainer's environment")
    config = context.spec.config
    advanced = config.advanced if isinstance(config, TrainingConfig) else TrainingAdvanced()
    extras = {"tinker": advanced.engine == "tinker", "quantize": advanced.quantize is not None}
    environment = await load_trainer_environment(context, *(extra for extra, is_used in extras.items() if is_used))
    return TrainerCommand(environment.python, environment.code)


class TrainingJob(Job):
    def __init__(
        self, context: JobContext, config: TrainingConfig, *, make_trainer: MakeTrainer = make_trainer_command
    ) -> None:
        self.context = context
        self.config = config
        self._make_trainer = make_trainer
        self._models_dir = Path(context.spec.models_dir or context.work_dir / "models")
        self._steps_dir = context.work_dir / "steps"
        self._steps = 0
        self._gpus = GpuSplit(())
        self._checkpoints = CheckpointSender(context)
        self._artifacts = ArtifactSender(context)
        self._pools: list[ServerPool] = []
        self._sealed: list[ServerPool] = []
        self._supervisor: TrainerSupervisor | None = None
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    def from_context(cls, context: JobContext) -> "TrainingJob":
        return cls(context, context.config_of(TrainingConfig, "the config of this run is not that of a training"))

    async def run(self) -> JobResult:
        context, exports = self.context, open_exports(self.context)
        self._gpus = gpus = GpuSplit.of(await asyncio.to_thread(gpu_names, context.environ), self.config.advanced)
        fetched_checkpoint = await self._fetch_folders() if context.spec.elsewhere else False
        examples = await load_examples(context, self.config) if self.config.advanced.method != "grpo" else None
        plan = trainer_plan(
            self.config, context.spec, models_dir=self._models_dir, gpus=len(gpus.trainer), examples=examples
        )
        check_reach(context.spec.gate, self._server_urls)
        names = (engine_secret(self.config), self.config.advanced.rollout_server_key_env)
        withheld = [name for name in names if name is not None]
        stages = [ServerStages(context, each, withheld=withheld) for each in self.config.environments.values()]
        checkouts = [] if self._server_urls else [await each.checkout() for each in stages]
        command = await self._make_trainer(context)
        vllm = await find_vllm(context) if gpus.samplers else None
        plan = plan.model_copy(update=await self._fetch_models(command, plan))
        samplers = VllmProcesses(context, vllm, plan, gpus) if vllm else None
        prepared = [await each.prepare(checkout) for each, checkout in zip(stages, checkouts, strict=False)]
        if context.spec.elsewhere:
            await self._rewind(fetched_checkpoint)
        rows = await JobRows.read(context)
        try:
            for each, rollout in zip_longest(stages, prepared):
                self._pools.append(await self._start_servers(each, rollout))
                if sealed := self.config.advanced.sealed:
                    self._sealed.append(await each.start_sealed(rollout, sealed))
            async with exporting(context, exports), self._checkpoints, self._artifacts:
                done = await self._train(plan, command, samplers, rows, stages)
        except TrainingRunFailed as problem:
            raise JobFailed(problem.failure) from problem
        finally:
            await asyncio.gather(*(pool.stop() for pool in (*self._pools, *self._sealed)))
        await context.reporter.heartbeat(context.progress)  # a quick run ends before the next one
        return JobResult(status=RunStatus.STOPPED if done.stopped else RunStatus.FINISHED)

    def stop(self) -> float:
        """Have the trainer save a checkpoint; before it trains there is nothing to save."""
        if self._supervisor is None or not self._supervisor.can_save:
            return 0.0
        self._stopping = asyncio.create_task(self._supervisor.stop())
        return SAVE_TIMEOUT_S

    # --- the listener of the driver ---

    def on_rollout(self, line: bytes) -> None:
        self.context.reporter.rollout(line)
        if self.context.spec.elsewhere:
            self._artifacts.put(str(orjson.loads(line)["rollout_id"]))

    def on_metrics(self, points: Sequence[MetricPoint]) -> None:
        self.context.reporter.metrics(points)

    def on_checkpoint(self, checkpoint: Checkpointed) -> None:
        self._checkpoints.put(CheckpointReport.model_validate(checkpoint.model_dump(exclude={"type", "best"})))
        self.on_step(checkpoint.step)
        reward = "" if checkpoint.reward is None else f", reward {checkpoint.reward:.3f}"
        best = " (the best)" if checkpoint.best else ""
        self.on_message(f"checkpoint of step {checkpoint.step}{reward}{best}")

    def on_step(self, step: int) -> None:
        if self._supervisor is not None:
            self._supervisor.step = max(self._supervisor.step, step)
        if step >= self.context.progress.completed:
            self.context.advance(step, self._steps)

    def on_message(self, text: str, *, warning: bool = False) -> None:
        self.context.log.write(STEP, text, "warning" if warning else "info")

    def on_alarm(self, text: str) -> None:
        self.context.log.write(ALARM, text, "warning")

    async def wait_for_room(self) -> None:
        await self.context.wait_for_room()

    # --- what the platform has ---

    async def _fetch_folders(self) -> bool:
        context, folders = self.context, await self.context.reporter.list_folders()
        paths: dict[str, object] = {}
        for folder in folders:
            if folder.name in context.spec.folders:
                paths[f"{folder.name}_path"] = str(await fetch_model(context, folder))
        context.spec = context.spec.model_copy(update=paths)
        checkpoints = [folder for folder in folders if folder.name not in MODEL_FOLDERS]
        keep_all = self.config.checkpoints.keep is not None
        return await fetch_checkpoints(context, checkpoints, self._models_dir, keep_all=keep_all)

    async def _rewind(self, fetched_checkpoint: bool) -> None:
        """Drop the rollouts after the checkpoint to resume from, whose tokens are on another machine's disk."""
        newest = await asyncio.to_thread(find_newest_checkpoint, self._models_dir)
        step = newest.step if newest else -1
        if fetched_checkpoint:
            for kind, number in list_stored_steps(self._steps_dir):
                if number > step:
                    await asyncio.to_thread(shutil.rmtree, self._steps_dir / step_folder_name(kind, number))
        local_keys = await asyncio.to_thread(self._list_local_keys)
        stored = await self.context.reporter.list_stored_keys()
        carries = fetched_checkpoint and self.config.advanced.oversample > 1
        if carries or any(key[0] > step and key not in local_keys for key in stored):
            await self.context.reporter.post("rewind", JobRewind(step=step))

    def _list_local_keys(self) -> set[Key]:
        journals = [StepJournal(self._steps_dir, kind, step) for kind, step in list_stored_steps(self._steps_dir)]
        return {rollout.key for journal in journals for rollout in journal.rollouts()}

    async def _send_missing(self, metrics: MetricsFile) -> None:
        reporter = self.context.reporter
        stored = await reporter.list_stored_keys()
        sent, lines = 0, self._iterate_missing(stored)
        while batch := await asyncio.to_thread(lambda: list(islice(lines, RESEND_BATCH))):
            for line in batch:
                reporter.rollout(line)
            sent += len(batch)
            await self.context.wait_for_room()
        if points := metrics.points():
            reporter.metrics(points)

        def warn(text: str) -> None:
            self.on_message(text, warning=True)

        for folder, manifest in await asyncio.to_thread(list_checkpoints, self._models_dir, warn):
            step, kind, reward = manifest.step, manifest.kind, manifest.reward
            self.on_checkpoint(Checkpointed(step=step, path=str(folder), kind=kind, reward=reward))
        if total := len(stored) + sent:
            self.on_message(f"resuming: {total} rollouts are stored, {sent} are sent again")

    def _iterate_missing(self, stored: set[Key]) -> Iterator[bytes]:
        for kind, step in list_stored_steps(self._steps_dir):
            journal = StepJournal(self._steps_dir, kind, step, redactor=self.context.redactor)
            yield from (line for rollout, line in journal.plain_lines() if rollout.key not in stored)

    # --- servers and trainer ---

    @property
    def _server_urls(self) -> list[str]:
        servers = self.config.advanced.rollout_servers
        return servers if isinstance(servers, list) else []

    async def _start_servers(self, stages: ServerStages, prepared: PreparedRollout | None) -> ServerPool:
        context, servers = self.context, self.config.advanced.rollout_servers
        if prepared is not None:
            return await stages.start_pool(prepared, servers if isinstance(servers, int) else 1)
        context.enter(Stage.START, f"asking the rollout servers: {', '.join(self._server_urls)}")
        context.progress.sandbox = "the rollouts are on servers elsewhere, with what these have"
        key = self._get_secret("rollout_server_key_env", self.config.advanced.rollout_server_key_env)
        remote = [RemoteServer(url, key, context.log) for url in self._server_urls]
        await asyncio.gather(*(server.check() for server in remote))
        return ServerPool(remote, context.log)

    async def _fetch_models(self, command: TrainerCommand, plan: TrainerPlan) -> dict[str, str]:
        python = Path(command.argv[0])
        if plan.engine == "tinker":
            return {"tokenizer_path": str(await tokenizer_folder(self.context, self.config, python))}
        paths = {"model_path": plan.model_path, "teacher_path": plan.teacher_path}
        return {
            field: str(await base_model_folder(self.context, python, path))
            for field, path in paths.items()
            if path and "/" in path and not Path(path).is_dir()
        }

    async def _train(
        self,
        plan: TrainerPlan,
        command: TrainerCommand,
        samplers: VllmProcesses | None,
        rows: JobRows,
        stages: Sequence[ServerStages],
    ) -> Done:
        context = self.context
        self._steps = plan.steps
        context.enter(Stage.TRAINING, _describe_training(self.config.experiment.model_path, plan))
        context.advance(0, plan.steps)
        metrics = MetricsFile(context.work_dir / "metrics.jsonl")
        await self._send_missing(metrics)
        run = TrainingRun(
            plan=rollout_plan(self.config, context.spec),
            trainer_plan=plan,
            read_rows=rows.at,
            steps_dir=self._steps_dir,
            metrics=metrics,
            listener=self,
            failure_rewards={Category(name): reward for name, reward in self.config.advanced.failures.items()},
            hashes={"agent": context.spec.commit_sha},
            redactor=context.redactor,
        )
        async with AsyncExitStack() as stack:
            if samplers is not None:
                await stack.enter_async_context(samplers.running())
                plan = plan.model_copy(update={"sampler_urls": samplers.urls, "samplers_sleep": samplers.sleep})
            key = samplers.key if samplers else self._get_secret("api_key_env", engine_secret(self.config))
            process = await stack.enter_async_context(self._trainer_process(plan, command, key))
            client = await stack.enter_async_context(TrainerClient(process.socket))
            model = TrainedModel(client, self.config.experiment.model_path, seed=plan.seed)
            self._supervisor = supervisor = TrainerSupervisor(run, plan, process, client, model, context.log)
            agents, sealed = list[Agent](), list[Agent]()
            for at, environment in enumerate(self.config.environments.values()):
                pool, own = self._pools[at], rollout_plan(self.config.of(environment), context.spec)
                elsewhere = bool(self._server_urls)
                opening = open_model_proxy(model, context.spec.gate, elsewhere=elsewhere, sandboxes=pool.sandboxes)
                proxy = await stack.enter_async_context(opening)
                served = await stack.enter_async_context(pool.running(proxy, own))
                agents.append(stages[at].agent(served, proxy, own))
                if self._sealed:
                    sealed.append(await stack.enter_async_context(self._sealed[at].running(proxy, own)))
            run.sealed = MixedAgent(plan, sealed) if sealed else None
            training = asyncio.create_task(supervisor.run(MixedAgent(plan, agents)))
            try:
                failures = [
                    *(pool.failed for pool in (*self._pools, *self._sealed)),
                    *([samplers.failed] if samplers else []),
                ]
                await wait_for_first(training, *failures)
                if training.done():
                    return training.result()
                raise next(failure.result() for failure in failures if failure.done())
            finally:
                await end_tasks(training)

    @asynccontextmanager
    async def _trainer_process(
        self, plan: TrainerPlan, command: TrainerCommand, key: str | None
    ) -> AsyncIterator[TrainerProcess]:
        context = self.context
        environ = trainer_environ(context.environ, command.code, secret=key)
        if self._gpus.trainer:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus.trainer)
        elsewhere = plan.engine != "local" or plan.sampler != "builtin"
        sandbox = JobSandbox.for_trainer(self.context.spec, elsewhere=elsewhere)
        self.context.log.write(STEP, f"sandbox of the trainer: {sandbox.description}")
        paths = (
            plan.model_path,
            plan.adapter_path,
            plan.tokenizer_path,
            plan.teacher_path,
            plan.examples_path,
            plan.resume_from,
        )
        read = [Path(path) for path in paths if path and Path(path).is_absolute()]
        output = Path(plan.output_dir)
        output.mkdir(parents=True, exist_ok=True)
        policy = sandbox.process_policy(Path(command.argv[0]), (command.code, *read), (output,))
        process = TrainerProcess(command, environ, context.work_dir / "trainer", context.log, context.leftovers, policy)
        try:
            yield process
        finally:
            await process.close()

    def _get_secret(self, key: str, name: str | None) -> str | None:
        return None if name is None else get_secret(self.context.secrets, key, name)


def engine_secret(config: TrainingConfig) -> str | None:
    elsewhere = config.advanced.engine == "tinker" or config.advanced.sampler == "vllm"
    return config.advanced.api_key_env if elsewhere else None


def _describe_training(model: str, plan: TrainerPlan) -> str:
    if plan.method != "grpo":
        return f"training {model}: {plan.steps} steps of {plan.rows_per_step} examples"
    held_out = f", {len(plan.validation_rows)} rows held out" if plan.validation_rows else ""
    rollouts = f"{plan.rows_per_step} rows x {plan.samples_per_row} rollouts"
    mixed = [f"{environment.share:.0%} {environment.name}" for environment in plan.environments]
    shares = f"; of rows and validation reward {', '.join(mixed)}" if mixed else ""
    return f"training {model}: {plan.steps} steps of {rollouts} from {len(plan.rows)} rows{held_out}{shares}"
