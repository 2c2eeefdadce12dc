"""A model of the platform, loaded for this job: its process in the trainer's environment, alive while the job is.

The environment is made as for training, the base model fetched the same way; the process answers on a Unix socket and
has neither lease nor secret. When it dies it is started again, a little later each time, and what it was answering is
asked again; one that keeps dying is given up (`KeptModel.failed`). Nothing is scored here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.backoff import backoff_delay
from osmosis.base.tasks import end, until_one
from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, Completion, Model
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Category
from osmosis.training.link import TrainerHealth, TrainerLink
from osmosis.training.link.serving_plan import ServingPlan
from osmosis.training.served_model import ServedModel

from .base_model import base_model_folder
from .boundary import Boundary
from .job import JobContext, JobFailed, setup_failed
from .trainer_environment import TrainerEnvironment, trainer_environment_of
from .trainer_process import TrainerCommand, TrainerProcess, trainer_environ

STEP = "model-server"
LOAD_S = 1800.0
POLL_S = 0.2
DEATHS_IN_A_ROW = 5
STEADY_S = 60.0
"""Alive for so long, it has not died in a row."""
RESTART_BASE_S, RESTART_MAX_S = 0.25, 30.0
ASKED_AGAIN = 2
"""How often a question is asked again when its answer was cut off by the end of the process: it may be what ends it."""
PATIENCE_S = 120.0
"""How long a question waits for a process that is started again."""


@dataclass(frozen=True, slots=True)
class ServingProgram:
    """What is started to serve a model. Tests give one that has no model."""

    made: TrainerEnvironment | None = None
    """None: the trainer's environment of this machine, made when it is not there yet."""
    module: str = "osmosis.training.trainer.serving"


@asynccontextmanager
async def platform_model(
    context: JobContext, spec: ModelSpec, *, concurrency: int, program: ServingProgram | None = None
) -> AsyncIterator[KeptModel]:
    """The model of the job, loaded and ready; its process ends with the block. Raises `JobFailed`."""
    program = program or ServingProgram()
    made = program.made or await trainer_environment_of(context)
    folder = await base_model_folder(context, made.python)
    adapter = context.spec.adapter_path or None
    plan = ServingPlan(name=spec.name, model_path=str(folder), adapter_path=adapter, concurrency=max(concurrency, 1))
    boundary = Boundary.of_model(context.spec)
    context.log.write(STEP, f"sandbox of {spec.name}: {boundary.describe}")
    if context.spec.kind == "serving":
        context.progress.sandbox = boundary.describe
    read = (made.code, folder, *([Path(adapter)] if adapter else []))
    process = TrainerProcess(
        TrainerCommand(made.python, made.code, module=program.module),
        trainer_environ(context.environ, made.code),
        context.work_dir / STEP,
        context.log,
        context.leftovers,
        boundary.of_process(made.python, read, ()),
    )
    try:
        async with TrainerLink(process.socket) as link:
            kept = KeptModel(context, spec, process, link, plan)
            await kept.load()
            keeper = asyncio.create_task(kept.keep())
            try:
                yield kept
            finally:
                await end(keeper)
    finally:
        await process.close()


class KeptModel:
    """A `Model` over as many lives of its process as it takes. `failed` holds a `JobFailed` once it is given up."""

    def __init__(
        self, context: JobContext, spec: ModelSpec, process: TrainerProcess, link: TrainerLink, plan: ServingPlan
    ) -> None:
        self.spec = spec
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self._context = context
        self._process = process
        self._link = link
        self._plan = plan
        self._model: Model = ServedModel(link, spec)
        self._up = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether its process answers now."""
        return self._up.is_set()

    async def complete(self, request: ChatRequest) -> Completion:
        asked_again = 0
        while True:
            await self._wait_up()
            try:
                return await self._model.complete(request)
            except ModelError as error:
                gone = error.category == Category.CONNECTION.value
                if not gone or request.told or asked_again >= ASKED_AGAIN:
                    raise
                asked_again += 1
                await asyncio.sleep(POLL_S)  # its end is noticed in this time

    async def close(self) -> None:
        """The process belongs to whoever opened it."""

    async def load(self) -> None:
        """Starts the process and waits until it answers. Raises `JobFailed` with what it said of its end."""
        await self._process.start(self._plan)
        facts = (await _loaded(self._link, self._process)).model
        if facts is not None:
            self._context.log.write(STEP, f"serving {self.spec.name}: {facts.dtype} on {facts.device}")
        self._up.set()

    async def keep(self) -> None:
        """Starts it again whenever it has ended, until it has ended too often."""
        deaths = 0
        try:
            while True:
                since = time.monotonic()
                await self._process.wait_died()
                self._up.clear()
                deaths = 1 if time.monotonic() - since > STEADY_S else deaths + 1
                how, tail = self._process.how, "\n".join(self._process.tail)
                await self._process.stop()
                if deaths >= DEATHS_IN_A_ROW:
                    raise _given_up(self.spec.name, deaths, how, tail)
                delay = backoff_delay(deaths, base_s=RESTART_BASE_S, max_s=RESTART_MAX_S)
                said = f"the process of the model ended with {how}: starting it again in {delay:.1f} s"
                self._context.log.write(STEP, said, "warning")
                await asyncio.sleep(delay)
                await self.load()
        except JobFailed as problem:
            self.failed.set_result(problem)
        except Exception as problem:  # noqa: BLE001 - border of a task nobody awaits: the job must hear of it
            what = f"the process of the model cannot be kept: {type(problem).__name__}: {problem}"
            self.failed.set_result(setup_failed(what, category=Category.UNKNOWN))

    async def _wait_up(self) -> None:
        if self._up.is_set():
            return
        if not self.failed.done():
            waiting = asyncio.create_task(self._up.wait())
            await until_one(waiting, self.failed, timeout_s=PATIENCE_S)
            waiting.cancel()
        if self.failed.done():
            raise ModelError(self.failed.result().message, category=Category.SERVER_DIED.value)
        if not self._up.is_set():
            raise ModelError("the model is being started again", category=Category.CONNECTION.value, retry_after=5.0)


def _given_up(name: str, deaths: int, how: str, tail: str) -> JobFailed:
    fix = "it may run out of memory: choose a smaller model, or a machine with more"
    what = f"the process of {name} ended {deaths} times in a row, the last time with {how}"
    return setup_failed(what, fix=fix, category=Category.SERVER_DIED, tail=tail)


async def _loaded(link: TrainerLink, process: TrainerProcess) -> TrainerHealth:
    """Waits until the model answers. Raises `JobFailed` with what the process said of its end."""
    died, waiting = asyncio.create_task(process.wait_died()), asyncio.create_task(_ready(link))
    try:
        await asyncio.wait({died, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=LOAD_S)
        if waiting.done():
            return waiting.result()
        if died.done():
            fix = "it may have run out of memory: choose a smaller model" if process.killed else None
            what, tail = f"the model could not be loaded: its process ended with {process.how}", "\n".join(process.tail)
            raise setup_failed(what, fix=fix, category=Category.SERVER_DIED, tail=tail)
        raise setup_failed(f"the model was not loaded within {LOAD_S:.0f} s", category=Category.TIMEOUT)
    finally:
        await end(died, waiting)


async def _ready(link: TrainerLink) -> TrainerHealth:
    health = await link.wait_up()
    while health.state == "loading":
        await asyncio.sleep(POLL_S)
        health = await link.health()
    if health.state == "failed":
        raise await _why(link)
    return health


async def _why(link: TrainerLink) -> JobFailed:
    async for numbered in link.events():
        if numbered.event.type == "failed":
            event = numbered.event
            return setup_failed(event.message, fix=event.fix, category=Category.UNKNOWN, tail=event.traceback)
    return setup_failed("the model could not be loaded", category=Category.UNKNOWN)
