"""A model served on this machine by whoever runs the command, without a platform: its process in the trainer's
environment, and the OpenAI-compatible endpoint in this one, on loopback, with a key made for this time alone.

The same parts as in a deployment's job: what is sampled is sampled alike. Ends when it is told to, or when the process
cannot be kept.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.redact import Redactor
from osmosis.base.tasks import until_one
from osmosis.records.plan import PLATFORM_MODEL, ModelSpec
from osmosis.records.run import JobSpec, LogLine, ModelJob
from osmosis.serve.drive.inference import InferenceEndpoint

from .commands import Leftovers
from .job import JobContext, JobLog
from .platform_model import ServingProgram, platform_model
from .reporter import Reporter
from .serving_work import CONCURRENCY, DRAIN_S, TIME_LIMIT_S

KEY_PREFIX = "osl_"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """What is served: folders of this machine, or the hub name of a base model."""

    name: str
    model_path: str
    adapter_path: str = ""


@dataclass(frozen=True, slots=True)
class LocalServing:
    """Where it is asked, and with which key."""

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
    """Serves until `stop`; how many answers that were. Raises `JobFailed` when the model cannot be loaded or kept."""
    key = KEY_PREFIX + secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="osmosis-serve-") as work:
        context = _context(model, cache_dir, Path(work), environ, log, key)
        spec = ModelSpec.parse(PLATFORM_MODEL + model.name)
        async with platform_model(context, spec, concurrency=CONCURRENCY, program=program) as kept:
            endpoint = InferenceEndpoint(kept, name=model.name, key=key, time_limit_s=TIME_LIMIT_S)
            url = await endpoint.start(port=port)
            try:
                ready(LocalServing(url, key))
                stopping = asyncio.create_task(stop.wait())
                await until_one(stopping, kept.failed)
                stopping.cancel()
                if kept.failed.done():
                    raise kept.failed.result()
                await endpoint.drained(DRAIN_S)
            finally:
                await endpoint.stop()
    return endpoint.answered


def _context(
    model: LocalModel,
    cache_dir: Path,
    work: Path,
    environ: Mapping[str, str],
    log: Callable[[LogLine], None],
    key: str,
) -> JobContext:
    """A job that no platform knows: its reporter is never opened."""
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
