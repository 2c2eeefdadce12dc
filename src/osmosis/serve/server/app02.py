"""The rollout server of generation 0.2: `create_app(agent_loop)` serves `/v1/rollout/init`, and `POST /rollout` of
the later generations beside it, on one queue. What it refuses to do: run a rollout twice, drop a result, answer
anything but `/health` without the key when there is one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from osmosis.paths import DEFAULT_PLATFORM_URL
from osmosis.records.wire import ARTIFACT_VARIABLE, INSTANCE_VARIABLE
from osmosis.records.wire02 import DEFAULT_MAX_METADATA_SIZE_BYTES, set_max_metadata_size_bytes
from osmosis.sdk.agent_loop import RolloutAgentLoop

from .app import assemble, default_spool, open_files, open_traces
from .delivery import DeliveryPolicy
from .http import reply_json
from .limits import ServeLimits
from .loop_backend import LoopBackend
from .registration import Registrar, Registration
from .rollout_settings import RolloutSettings, get_settings
from .runtime import ServerRuntime
from .v02 import LoopDesk, add_init_routes
from .v03 import RolloutDesk, add_rollout_routes

Hook = Callable[[], Awaitable[None]]


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    credentials: Any = None,
    server_host: str | None = None,
    server_port: int | None = None,
    api_key: str | None = None,
    debug_dir: str | os.PathLike[str] | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
    *,
    limits: ServeLimits | None = None,
    delivery_policy: DeliveryPolicy | None = None,
    spool_dir: Path | None = None,
    registration: Registration | None = None,
    environ: Mapping[str, str] | None = None,
) -> FastAPI:
    """A FastAPI app that serves `agent_loop`.

    `max_concurrent` and `record_ttl_seconds` overrule `settings` (`ValueError` unless positive). `api_key` is
    wanted as a bearer everywhere but on `/health`. `debug_dir` gets `<unix seconds>/<rollout_id>.jsonl` traces.
    `credentials` (with `access_token`), `server_host` and `server_port` together, or `registration`, register the
    server with a platform. `on_startup` and `on_shutdown` are awaited around its life.
    """
    environ = os.environ if environ is None else environ
    known = settings or get_settings()
    slots = _positive("max_concurrent", max_concurrent, known.server.max_concurrent_rollouts)
    ttl = _positive("record_ttl_seconds", record_ttl_seconds, known.server.record_ttl_seconds)
    if known.max_metadata_size_bytes != DEFAULT_MAX_METADATA_SIZE_BYTES:
        set_max_metadata_size_bytes(known.max_metadata_size_bytes)
    bounds = limits or replace(ServeLimits(), rollout_timeout_s=known.server.request_timeout_seconds, keep_s=ttl)
    client = known.client
    runtime = ServerRuntime(
        int(slots),
        bounds,
        spool_dir=spool_dir or default_spool(environ),
        delivery_policy=delivery_policy,
        # A limit that nobody chose would be a second, hidden bound on the rollouts that run at once.
        max_connections=client.max_connections if "max_connections" in client.model_fields_set else 0,
    )
    traces = open_traces(debug_dir, api_key, environ)
    if traces is not None:
        runtime.after_close.append(traces.close)
    if registration is None and credentials is not None and server_host and server_port:
        registration = Registration(
            platform_url=environ.get("OSMOSIS_PLATFORM_URL", DEFAULT_PLATFORM_URL),
            token=credentials.access_token,
            host=server_host,
            port=server_port,
            agent_name=agent_loop.name,
            api_key=api_key,
            public_host=environ.get("OSMOSIS_PUBLIC_HOST"),
        )
    registrar = Registrar(registration, known.server) if registration else None
    if registrar is not None:
        runtime.background.append(registrar.run)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if on_startup is not None:
            await on_startup()
        try:
            yield
        finally:
            if on_shutdown is not None:
                await on_shutdown()

    @asynccontextmanager
    async def unregistering() -> AsyncIterator[None]:
        try:
            yield
        finally:
            if registrar is not None:
                await registrar.deregister()

    runtime.around = unregistering
    app = assemble(f"Osmosis rollout server: {agent_loop.name}", runtime, life, api_key=api_key)
    loops = LoopDesk(agent_loop, runtime, known, record_ttl_s=ttl, traces=traces)
    backend = LoopBackend(agent_loop, max_concurrent=int(slots), traces=traces)
    later = RolloutDesk(
        backend,
        runtime,
        instance_id=environ.get(INSTANCE_VARIABLE),
        files=open_files(backend, runtime, api_key, environ) if environ.get(ARTIFACT_VARIABLE) else None,
    )

    async def health(_: Request) -> Response:
        return reply_json({**later.health().to_dict(), **loops.health()})

    app.router.add_route("/health", health, methods=["GET"])
    add_init_routes(app, loops, authenticated=bool(api_key))
    add_rollout_routes(app, later, health=False)
    app.state.rollouts = later
    app.state.loops = loops
    return app


def _positive(name: str, given: float | None, default: float) -> float:
    value = default if given is None else given
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value
