"""The trainer of a job, a process in a sandbox without lease or token, and its supervisor, which starts it again from
its newest checkpoint; one that keeps dying without finishing a step ends the run."""

import asyncio
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from osmosis.base.files import write_text
from osmosis.base.processes import end_tasks, iterate_lines
from osmosis.engine.agent import Agent
from osmosis.errors import ModelError, ValidationError
from osmosis.jobs.commands import Leftovers, machine_environ
from osmosis.jobs.context import TAIL_LINES, JobLog
from osmosis.jobs.server.supervisor import describe
from osmosis.records.base import Record
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.records.run.training import CheckpointManifest, read_manifest
from osmosis.sandbox import Box, Policy, start
from osmosis.training.collecting import TrainingRun
from osmosis.training.driver import TrainingDriver
from osmosis.training.failures import FIXES, TrainerLost, TrainingRunFailed
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Done
from osmosis.training.protocol.plans import TrainerPlan

STEP = "trainer"
MODULE = "osmosis.training.trainer"
GRACE_S = 10.0
SERVER_KEYS = ("TINKER_API_KEY", "VLLM_API_KEY")
PREFIXES = ("CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "TORCH_", "PYTORCH_")


class TrainerCommand:
    def __init__(self, python: Path, code: Path, *, module: str = MODULE) -> None:
        self.argv: Sequence[str] = (str(python), "-m", module)
        self.code = code


def trainer_environ(environ: Mapping[str, str], code: Path, *, secret: str | None = None) -> dict[str, str]:
    machine = {k: v for k, v in machine_environ(environ).items() if not k.startswith(("UV_", "PIP_"))}
    libraries = {name: value for name, value in environ.items() if name.startswith(PREFIXES)}
    variables = {**machine, **libraries, "PYTHONPATH": str(code), "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}
    return {**variables, **dict.fromkeys(SERVER_KEYS, secret)} if secret else variables


@dataclass(eq=False, repr=False)
class TrainerProcess:
    _command: TrainerCommand
    _environ: Mapping[str, str]
    _folder: Path
    _log: JobLog
    _leftovers: Leftovers
    _policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        # The path of a socket may have about a hundred characters; the run's folder can be deeper than that.
        self._socket_dir = Path(tempfile.mkdtemp(prefix="osmosis-trainer-"))
        self.socket = self._socket_dir / "link.sock"
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._box: Box | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._died = asyncio.Event()

    async def start(self, plan: Record) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "trainer-plan.json"
        write_text(file, plan.model_dump_json(indent=1))
        self.socket.unlink(missing_ok=True)
        self.tail.clear()
        self._died = asyncio.Event()
        argv = (*self._command.argv, str(file), str(self.socket))
        write = (*self._policy.write, self._folder, self._socket_dir)
        self._box = await start(argv, replace(self._policy, environ=self._environ, cwd=self._folder, write=write))
        self._leftovers.add(self._box.pid)
        self._tasks = [asyncio.create_task(self._read(self._box)), asyncio.create_task(self._watch(self._box))]

    @property
    def pid(self) -> int | None:
        return self._box.pid if self._box else None

    @property
    def ended(self) -> bool:
        return self._died.is_set()

    @property
    def exit_description(self) -> str:
        code = self._box.exit_code if self._box else None
        return describe(code) if code is not None else "no exit code"

    @property
    def was_killed(self) -> bool:
        return self._box is not None and self._box.exit_code == -signal.SIGKILL

    async def wait_died(self) -> None:
        await self._died.wait()

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        if self._box is not None:
            self._box.ask_to_end()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._died.wait(), grace_s)
            await self._box.close()
            await asyncio.wait(self._tasks, timeout=1.0)
        await end_tasks(*self._tasks)

    async def close(self) -> None:
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._socket_dir, True)

    async def _read(self, box: Box) -> None:
        async for line in iterate_lines(box.stdout):
            self.tail.append(line)
            self._log.write(STEP, line, "debug")

    async def _watch(self, box: Box) -> None:
        await box.wait()
        self._died.set()


MAX_DEATHS_IN_A_ROW = 3
LAST_EVENTS_S = 5.0
HEALTH_INTERVAL_S = 0.5


@dataclass(eq=False, repr=False)
class TrainerSupervisor:
    _run: TrainingRun
    _plan: TrainerPlan
    _process: TrainerProcess
    _client: TrainerClient
    _model: TrainedModel
    _log: JobLog
    _driver: TrainingDriver | None = None
    _stopping: bool = False
    step: int = 0

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
        failure = Failure(phase=Phase.MODEL, category=category, message=message, traceback=tail, fix=fix)
        return TrainingRunFailed(failure)


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
