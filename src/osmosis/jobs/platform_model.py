"""The platform's own models in an evaluation: `osmosis/NAME` is sampled by a process that lives as long as the run.

It needs no token and no port: it answers over a Unix socket of the job's own, and the job serves it to the rollout
through the same gate as any other model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from osmosis.llm import Model
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Category
from osmosis.training.link import Health, TrainerLink
from osmosis.training.link.serving_plan import ServingPlan
from osmosis.training.served_model import ServedModel

from .base_model import base_model_folder
from .job import JobContext, JobFailed, setup_failed
from .trainer_environment import TrainerEnvironment, trainer_environment_of
from .trainer_process import TrainerCommand, TrainerProcess, trainer_environ

MODULE = "osmosis.training.trainer.serving"
STEP = "model-server"
LOAD_S = 1800.0
POLL_S = 0.2


@asynccontextmanager
async def platform_model(
    context: JobContext,
    spec: ModelSpec,
    *,
    concurrency: int,
    made: TrainerEnvironment | None = None,
    module: str = MODULE,
) -> AsyncIterator[Model]:
    """The model of the run, loaded and ready; its process ends with the block. Raises `JobFailed`."""
    made = made or await trainer_environment_of(context)
    folder = await base_model_folder(context, made.python)
    adapter = context.spec.adapter_path or None
    plan = ServingPlan(name=spec.name, model_path=str(folder), adapter_path=adapter, concurrency=max(concurrency, 1))
    process = TrainerProcess(
        TrainerCommand(made.python, made.code, module=module),
        trainer_environ(context.environ, made.code),
        context.work_dir / STEP,
        context.log,
        context.leftovers,
    )
    try:
        await process.start(plan)
        async with TrainerLink(process.socket) as link:
            facts = (await _loaded(link, process)).model
            if facts is not None:
                context.log.write(STEP, f"serving {spec.name}: {facts.dtype} on {facts.device}")
            yield ServedModel(link, spec)
    finally:
        await process.close()


async def _loaded(link: TrainerLink, process: TrainerProcess) -> Health:
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
        for task in (died, waiting):
            task.cancel()
        await asyncio.gather(died, waiting, return_exceptions=True)


async def _ready(link: TrainerLink) -> Health:
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
