"""The rollout server of generations 0.3 and 0.4: `POST /rollout` with callbacks, or polled under a lease. Every
accepted rollout ends in exactly one result, which is called back until it is taken or kept until it is read. Model
traffic does not pass through here: the rollout calls the URL it was given."""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import APIRouter, FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError

from osmosis.base.paths import data_dir
from osmosis.records.base import Record
from osmosis.records.protocol import messages as protocol
from osmosis.serve import http
from osmosis.serve.server.callbacks import DeliveryPolicy, spool_folder
from osmosis.serve.server.queue import NotAccepted, QueueFull, ServeLimits
from osmosis.serve.server.rollouts import Backend, RolloutService, ServerRuntime
from osmosis.serve.server.trace_files import TraceFolder, TrajectoryWriter, secret_values

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


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
    """Return a FastAPI app that runs rollouts on `backend`, as many at once as it allows, at most `max_concurrent`.
    `lifespan` is entered around the server's own life. With `api_key` every endpoint but `/health` wants it as a
    bearer. Undeliverable results are spooled in `spool_dir` (default: a folder of this backend and of the current
    folder, beneath the artifact root or the user data directory). `environ` (default: the process's) gives the instance
    id that `/health` echoes. `trajectory.json` and `diagnostics.json` of each rollout are written with
    `save_trajectories`, never without it when it is False, and by default when the artifact root is set or the rollout
    made its folder of artifacts."""
    environ = os.environ if environ is None else environ
    limits = limits or ServeLimits()
    depth = getattr(backend, "max_queue_depth", None)
    kind = getattr(backend, "workflow", None) or type(backend)
    agent = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"
    bounds = [bound for bound in (backend.max_concurrent, max_concurrent) if bound is not None]
    runtime = ServerRuntime(
        min(bounds, default=None),
        limits if depth is None else replace(limits, max_queue=depth),
        spool_dir=spool_dir or default_spool_folder(environ, agent),
        delivery_policy=delivery_policy,
    )
    if (close := getattr(backend, "aclose", None)) is not None:
        runtime.backends.append(close)
    traces = open_trace_folder(log_dir, runtime, api_key, environ)
    files = None
    if save_trajectories is not False:
        files = open_trajectory_writer(backend, runtime, api_key, environ)
        files.everything = files.everything or bool(save_trajectories)
    service = RolloutService(
        backend, runtime, instance_id=environ.get(protocol.INSTANCE_VARIABLE), traces=traces, files=files
    )
    app = build_app("Osmosis rollout server", runtime, lifespan, api_key=api_key, configure_logging=configure_logging)
    router = rollout_routes(service)

    @router.get(
        "/health", **http.document("Health; its keys identify the generation", protocol.ServerHealth, bearer=None)
    )
    async def health() -> Response:
        return http.reply(service.health())

    app.include_router(router)
    app.state.rollouts = service
    return app


def build_app(
    title: str,
    runtime: ServerRuntime,
    lifespan: Lifespan | None,
    *,
    api_key: str | None,
    configure_logging: bool = True,
) -> FastAPI:
    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[Any]:
        if configure_logging:
            configure_logs()
        if lifespan is None:
            async with runtime.opened():
                yield
        else:
            async with lifespan(app) as state, runtime.opened():
                yield state

    app = FastAPI(title=title, version="1", lifespan=live, separate_input_output_schemas=False)
    app.state.runtime = runtime
    app.state.max_body_bytes = runtime.limits.max_body_bytes
    if api_key:
        app.add_middleware(http.BearerGuard, api_key=api_key)
    else:
        app.add_middleware(http.JsonOnly)
    app.add_exception_handler(NotAccepted, _answer_not_accepted)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return app


async def _answer_not_accepted(_: Request, exc: Exception) -> Response:
    full = isinstance(exc, QueueFull)
    message = "the queue is full" if full else "the server is shutting down"
    retry_after_s = cast("NotAccepted", exc).retry_after_s
    return http.reply({"detail": message}, 429 if full else 503, {"Retry-After": str(retry_after_s)})


async def _answer_invalid(_: Request, exc: Exception) -> Response:
    problems = []
    for error in cast("RequestValidationError", exc).errors():
        if error["type"] == "json_invalid":
            error = {**error, "loc": ("body",), "msg": f"Invalid JSON: {error['ctx']['error']}"}
        problems.append({key: error[key] for key in ("type", "loc", "msg")})
    return http.reply({"detail": problems}, 422)


def new_router(*requests: type[Record]) -> APIRouter:
    for shape in requests:
        http.documented(shape)
    return APIRouter(route_class=http.JsonRoute, generate_unique_id_function=http.operation_id)


def rollout_routes(service: RolloutService) -> APIRouter:
    router = new_router(protocol.RolloutInit, protocol.CancelRequest)

    @router.post(
        "/rollout",
        status_code=202,
        **http.document(
            "Start a rollout: 0.3 with callback URLs (202 `{}`), else 0.4 and then polled",
            protocol.RolloutAccepted,
            (401, 409, 413, 422, 429, 503),
        ),
    )
    async def start(init: protocol.RolloutInit) -> Response:
        accepted = service.accept(init)
        return http.reply({} if accepted is None else accepted, 202)

    @router.post(
        "/rollout/cancel", **http.document("Cancel by ids, by prefix, or all", protocol.CancelReply, (401, 422))
    )
    async def cancel(request: protocol.CancelRequest) -> Response:
        return http.reply(protocol.CancelReply(dispositions=service.cancel(request)))

    @router.get(
        "/rollout/{rollout_id}/result",
        **http.document(
            "0.4: wait for the next state change; renews the lease", protocol.RolloutState04, (401, 403, 404, 422)
        ),
    )
    async def result(
        rollout_id: str, lease: Annotated[str, Header(alias=protocol.LEASE_HEADER)], request: Request
    ) -> Response:
        return http.reply(await service.result(rollout_id, lease, partial(http.wait_disconnected, request)))

    @router.get(
        "/rollout/{rollout_id}/status",
        **http.document(
            "State of a rollout; `unknown` when there is no such rollout", protocol.StatusReply, (401, 422)
        ),
    )
    async def status(rollout_id: str) -> Response:
        try:
            protocol.check_rollout_id(rollout_id)
        except ValueError as exc:
            raise HTTPException(422, str(exc)) from exc
        return http.reply(protocol.StatusReply(rollout_id=rollout_id, status=service.state(rollout_id).status))

    return router


def open_trace_folder(
    folder: str | os.PathLike[str] | None, runtime: ServerRuntime, api_key: str | None, environ: Mapping[str, str]
) -> TraceFolder | None:
    if folder is None:
        return None
    traces = TraceFolder(Path(folder) / str(int(time.time())), [api_key or "", *secret_values(environ)])
    runtime.after_close.append(traces.close)
    return traces


def open_trajectory_writer(
    backend: Backend, runtime: ServerRuntime, api_key: str | None, environ: Mapping[str, str]
) -> TrajectoryWriter:
    root = getattr(backend, "artifact_root", None) or environ.get(protocol.ARTIFACT_VARIABLE) or "~/.osmosis"
    everything = bool(environ.get(protocol.ARTIFACT_VARIABLE))
    files = TrajectoryWriter(Path(root).expanduser(), [api_key or "", *secret_values(environ)], everything=everything)
    runtime.after_close.append(files.close)
    return files


def default_spool_folder(environ: Mapping[str, str], agent: str) -> Path:
    root = environ.get(protocol.ARTIFACT_VARIABLE)
    return spool_folder((Path(root) if root else data_dir(environ)) / "undelivered", agent)


def configure_logs(level: int = logging.INFO) -> None:
    logger = logging.getLogger("osmosis")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)
