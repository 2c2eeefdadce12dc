"""The rollout server of generations 0.3 and 0.4 over a backend: `POST /rollout` with callbacks, or without them and
then polled under a lease. Every accepted rollout ends in exactly one result, which is called back until it is taken
or kept until it is read. Model traffic does not pass through here: the rollout calls the URL it was given.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from osmosis.base.paths import data_dir
from osmosis.records.wire import ARTIFACT_VARIABLE, INSTANCE_VARIABLE

from .auth import BearerGuard, JsonOnly
from .delivery import DeliveryPolicy, spool_folder
from .direct import RolloutApp
from .lifetime import ServerRuntime
from .queue import ServeLimits
from .traces import TraceFolder, TrajectoryWriter, secret_values
from .v03 import Backend, RolloutService, add_rollout_routes

if TYPE_CHECKING:
    from fastapi import FastAPI

Lifespan = Callable[["FastAPI"], AbstractAsyncContextManager[Any]]


def create_rollout_server(
    backend: Backend,
    lifespan: Lifespan | None = None,
    configure_logging: bool = True,
    *,
    api_key: str | None = None,
    max_concurrent: int | None = None,
    limits: ServeLimits | None = None,
    delivery_policy: DeliveryPolicy | None = None,
    spool_dir: Path | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    save_trajectories: bool | None = None,
) -> FastAPI:
    """A FastAPI app that runs rollouts on `backend`, as many at once as it allows and at most `max_concurrent`.

    `lifespan` is entered around the server's own life. With `api_key` every endpoint but `/health` wants it as a
    bearer. Undeliverable results are spooled in `spool_dir` (default: a folder of this backend and of the current
    folder, beneath the artifact root or the user data directory). `environ` (default: the process's) gives the
    instance id that `/health` echoes. `trajectory.json` and `diagnostics.json` of each rollout are written with
    `save_trajectories`, never without it when it is False, and by default when the artifact root is set or the
    rollout made its folder of artifacts.
    """
    environ = os.environ if environ is None else environ
    if configure_logging:
        configure_logs()
    bounds = [limit for limit in (backend.max_concurrent, max_concurrent) if limit is not None]
    runtime = ServerRuntime(
        min(bounds, default=None),
        _limits_of(backend, limits or ServeLimits()),
        spool_dir=spool_dir or default_spool(environ, _agent_of(backend)),
        delivery_policy=delivery_policy,
    )
    leave = getattr(backend, "aclose", None)
    if leave is not None:
        runtime.backends.append(leave)
    traces = open_traces(log_dir, runtime, api_key, environ)
    app = assemble("Osmosis rollout server", runtime, lifespan, api_key=api_key)
    files = None if save_trajectories is False else open_files(backend, runtime, api_key, environ)
    if files is not None and save_trajectories:
        files.everything = True
    service = RolloutService(backend, runtime, instance_id=environ.get(INSTANCE_VARIABLE), traces=traces, files=files)
    add_rollout_routes(app, service)
    app.state.rollouts = service
    return cast("FastAPI", app)


def _limits_of(backend: Backend, limits: ServeLimits) -> ServeLimits:
    depth = getattr(backend, "max_queue_depth", None)
    return limits if depth is None else replace(limits, max_queue=depth)


def assemble(title: str, runtime: ServerRuntime, lifespan: Lifespan | None, *, api_key: str | None) -> RolloutApp:
    """The app around a runtime: its life and authentication; routes come from the generation."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[Any]:
        if lifespan is None:
            async with runtime.opened():
                yield
        else:
            async with lifespan(app) as state, runtime.opened():
                yield state

    guard = partial(BearerGuard, api_key=api_key) if api_key else JsonOnly
    app = RolloutApp(title, guard, life)
    app.state.runtime = runtime
    return app


def open_traces(
    folder: str | os.PathLike[str] | None, runtime: ServerRuntime, api_key: str | None, environ: Mapping[str, str]
) -> TraceFolder | None:
    """The traces of one server run, in a folder of their own; None without a log folder."""
    if folder is None:
        return None
    traces = TraceFolder(Path(folder) / str(int(time.time())), [api_key or "", *secret_values(environ)])
    runtime.after_close.append(traces.close)
    return traces


def open_files(
    backend: Backend, runtime: ServerRuntime, api_key: str | None, environ: Mapping[str, str]
) -> TrajectoryWriter:
    """The files of rollouts, where their artifacts are: of every rollout when the artifact root is set."""
    root = getattr(backend, "artifact_root", None) or environ.get(ARTIFACT_VARIABLE) or "~/.osmosis"
    everything = bool(environ.get(ARTIFACT_VARIABLE))
    files = TrajectoryWriter(Path(root).expanduser(), [api_key or "", *secret_values(environ)], everything=everything)
    runtime.after_close.append(files.close)
    return files


def default_spool(environ: Mapping[str, str], agent: str) -> Path:
    """Where the undelivered results of this server are: of `agent`, started in the current folder."""
    root = environ.get(ARTIFACT_VARIABLE)
    return spool_folder((Path(root) if root else data_dir(environ)) / "undelivered", agent)


def _agent_of(backend: Backend) -> str:
    """The name by which a server is known again at its next start."""
    kind = getattr(backend, "workflow", None) or type(backend)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def configure_logs(level: int = logging.INFO) -> None:
    """Log lines of ours on stderr, unless the process has its own logging."""
    logger = logging.getLogger("osmosis")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)
