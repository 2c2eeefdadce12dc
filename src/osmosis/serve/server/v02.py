"""The rollout server of generation 0.2: `create_app(agent_loop)` serves `/v1/rollout/init`, and `POST /rollout` of
the later generations beside it, on one queue. What it refuses to do: run a rollout twice, drop a result, answer
anything but `/health` without the key when there is one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import aiohttp
import orjson
from pydantic import ValidationError as BadShape
from starlette.requests import Request
from starlette.responses import Response

from osmosis.base.json_types import JsonObject
from osmosis.base.paths import DEFAULT_PLATFORM_URL
from osmosis.records.loop_request import (
    DEFAULT_MAX_METADATA_SIZE_BYTES,
    LoopStatus,
    RolloutRequest,
    set_max_metadata_size_bytes,
)
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.tool_schema import OpenAIFunctionToolSchema
from osmosis.records.wire import ARTIFACT_VARIABLE, INSTANCE_VARIABLE
from osmosis.records.wire02 import InitResponse, LoopHealth, RolloutResponse
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.classify import describe, failure_of
from osmosis.sdk.rollout_sandbox import sandbox_while
from osmosis.sdk.sandbox_opening import opening_from
from osmosis.sdk.types import finite_reward
from osmosis.serve.endpoints import DeclaredEndpoint
from osmosis.serve.http_pool import open_session

from .agent_loops import AskTools, LoopBackend, TrainerModel, check_limits, checked_run, tool_dicts, trace_into
from .app import Lifespan, assemble, default_spool, open_files, open_traces
from .delivery import DeliveryPolicy, Post
from .direct import RolloutApp
from .http import HttpProblem, parse, read_body, reply_json, wire_text
from .lifetime import ServerRuntime
from .queue import AcceptedRollout, NotAccepted, RolloutOutcome, ServeLimits
from .registration import Registrar, Registration
from .rollout_settings import RolloutSettings, get_settings
from .traces import TraceFolder
from .v03 import RolloutService, add_rollout_routes

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger("osmosis.serve")

INIT = DeclaredEndpoint(
    "POST",
    "/v1/rollout/init",
    "0.2: start a rollout; a retried request gets the first answer",
    RolloutRequest,
    InitResponse,
    202,
    errors=(401, 409, 413, 422, 429, 500, 503),
)
PLATFORM_HEALTH = DeclaredEndpoint(
    "GET",
    "/platform/health",
    "0.2: health for the platform the server is registered with; 404 without an API key",
    response=LoopHealth,
    errors=(401, 404),
)
HEALTH = DeclaredEndpoint(
    "GET", "/health", "Health; its keys identify the generation", response=LoopHealth, bearer=None
)
ENDPOINTS = (INIT, PLATFORM_HEALTH, HEALTH)

Hook = Callable[[], Awaitable[None]]


class LoginCredentials(Protocol):
    """Who registers the server."""

    @property
    def access_token(self) -> str: ...


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    credentials: LoginCredentials | None = None,
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
    if known.max_metadata_size_bytes != DEFAULT_MAX_METADATA_SIZE_BYTES:
        set_max_metadata_size_bytes(known.max_metadata_size_bytes)
    slots = int(_positive("max_concurrent", max_concurrent, known.server.max_concurrent_rollouts))
    ttl = _positive("record_ttl_seconds", record_ttl_seconds, known.server.record_ttl_seconds)
    # A default limit would be a second, hidden bound on concurrent rollouts.
    connections = known.client.max_connections if "max_connections" in known.client.model_fields_set else 0
    policy = delivery_policy or DeliveryPolicy()
    runtime = ServerRuntime(
        slots,
        limits or replace(ServeLimits(), rollout_timeout_s=known.server.request_timeout_seconds, keep_s=ttl),
        spool_dir=spool_dir or default_spool(environ, agent_loop.name),
        delivery_policy=replace(policy, parallel=min(connections or policy.parallel, policy.parallel)),
    )
    if registration is None and credentials is not None and server_host and server_port:
        registration = _registration(agent_loop, credentials, server_host, server_port, api_key, environ)
    if registration is not None:
        Registrar(registration, known.server).attach(runtime)
    app = assemble(
        f"Osmosis rollout server: {agent_loop.name}", runtime, _around(on_startup, on_shutdown), api_key=api_key
    )
    traces = open_traces(debug_dir, runtime, api_key, environ)
    backend = LoopBackend(agent_loop, max_concurrent=slots, traces=traces)
    files = open_files(backend, runtime, api_key, environ) if environ.get(ARTIFACT_VARIABLE) else None
    later = RolloutService(backend, runtime, instance_id=environ.get(INSTANCE_VARIABLE), files=files)
    loops = LoopService(agent_loop, runtime, known, record_ttl_s=ttl, traces=traces, max_connections=connections)
    add_init_routes(app, loops, later, authenticated=bool(api_key))
    add_rollout_routes(app, later, health=False)
    app.state.rollouts = later
    app.state.loops = loops
    return cast("FastAPI", app)


def _registration(
    loop: RolloutAgentLoop,
    credentials: LoginCredentials,
    host: str,
    port: int,
    api_key: str | None,
    environ: Mapping[str, str],
) -> Registration:
    return Registration(
        platform_url=environ.get("OSMOSIS_PLATFORM_URL", DEFAULT_PLATFORM_URL),
        token=credentials.access_token,
        host=host,
        port=port,
        agent_name=loop.name,
        api_key=api_key,
        public_host=environ.get("OSMOSIS_PUBLIC_HOST"),
    )


def _around(on_startup: Hook | None, on_shutdown: Hook | None) -> Lifespan:
    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if on_startup is not None:
            await on_startup()
        try:
            yield
        finally:
            if on_shutdown is not None:
                await on_shutdown()

    return life


def _positive(name: str, given: float | None, default: float) -> float:
    value = default if given is None else given
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value


@dataclass(eq=False, slots=True)
class Started:
    """One accepted init; thousands of finished ones are remembered, so it is kept small."""

    rollout_id: str
    answer: bytes | asyncio.Future[bytes]
    finished_at: float | None = None


@dataclass(eq=False)
class LoopRun:
    """What a running agent loop leaves for its result."""

    request: RolloutRequest
    result: RolloutResult | None = None
    context: RolloutContext | None = None


class LoopService:
    """The rollouts of `/v1/rollout/init`."""

    def __init__(
        self,
        loop: RolloutAgentLoop,
        runtime: ServerRuntime,
        settings: RolloutSettings,
        *,
        record_ttl_s: float,
        traces: TraceFolder | None = None,
        max_connections: int = 0,
    ) -> None:
        self.loop = loop
        self.runtime = runtime
        self.settings = settings
        self._ttl_s = record_ttl_s
        self._traces = traces
        self._started: dict[str, Started] = {}
        self._tools = AskTools(loop)
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        runtime.background.append(self.clean)
        runtime.backends.append(self._close)

    def _connections(self) -> aiohttp.ClientSession:
        """What every loop asks its trainer over."""
        if self._session is None or self._session.closed:
            self._session = open_session(self._max_connections)
        return self._session

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def init(self, request: RolloutRequest) -> bytes:
        """The body of the 202; starts the rollout unless it is known. Raises `NotAccepted`."""
        key = request.idempotency_key or request.rollout_id
        known = self._started.get(key)
        if known is not None:
            if known.rollout_id != request.rollout_id:
                log.warning(
                    "rollout %s is not run: its idempotency key %s was used for rollout %s, whose answer it gets",
                    request.rollout_id,
                    key,
                    known.rollout_id,
                )
            return known.answer if isinstance(known.answer, bytes) else await asyncio.shield(known.answer)
        if self.runtime.queue.live(request.rollout_id) is not None:
            raise HttpProblem(409, f"rollout {request.rollout_id!r} is running under another idempotency key")
        self.runtime.queue.check()
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        started = Started(request.rollout_id, answered)
        self._started[key] = started
        try:
            tools = await self._tools.of(request)
            answer = orjson.dumps(
                {"rollout_id": request.rollout_id, "tools": [_with_nulls(tool) for tool in tool_dicts(tools)]}
            )
            # A result that an earlier process could not deliver is on its way: it must stay the only one.
            if not self.runtime.delivery.has(request.rollout_id):
                self._start(request, tools, started)
        except BaseException as exc:
            del self._started[key]
            refused = isinstance(exc, (HttpProblem, NotAccepted))
            problem = exc if refused else HttpProblem(500, f"get_tools raised {describe(exc)}")
            answered.set_exception(problem)
            answered.exception()  # retrieved: duplicates may not be waiting
            if refused or not isinstance(exc, Exception):
                raise
            raise problem from exc
        answered.set_result(answer)
        started.answer = answer
        return answer

    def health(self) -> dict[str, object]:
        return {
            "status": "healthy",
            "agent_loop": self.loop.name,
            "active_rollouts": self.runtime.queue.active,
            "completed_rollouts": self.runtime.queue.finished,
        }

    async def clean(self) -> None:
        """Forgets finished rollouts after their time; runs until cancelled."""
        loop = asyncio.get_running_loop()
        every = min(self.settings.server.cleanup_interval_seconds, self._ttl_s)
        while True:
            await asyncio.sleep(every)
            over = loop.time() - self._ttl_s
            for key, started in list(self._started.items()):
                if started.finished_at is not None and started.finished_at < over:
                    del self._started[key]

    def _start(self, request: RolloutRequest, tools: list[OpenAIFunctionToolSchema], started: Started) -> None:
        run = LoopRun(request)

        async def execute(_: AcceptedRollout) -> RolloutOutcome:
            check_limits(request)
            llm = TrainerModel(request, self.settings, self._connections(), self.runtime.pacer)
            run.context = RolloutContext(request, tools, llm, time.monotonic())
            trace_into(run.context, self._traces, (request.api_key,))
            url = f"{request.server_url.rstrip('/')}/v1/rollouts/{request.rollout_id}"
            async with sandbox_while(opening_from(os.environ, url, request.api_key)):
                run.result = await checked_run(self.loop, run.context)
            return RolloutOutcome("success")

        def ended(entry: AcceptedRollout) -> None:
            started.finished_at = entry.finished_at
            assert entry.outcome is not None
            url = request.server_url.rstrip("/") + "/v1/rollout/completed"
            body = wire_text(response_of(run, entry.outcome))
            self.runtime.delivery.send(Post(request.rollout_id, url, body, request.api_key))

        limit = self.settings.server.request_timeout_seconds
        self.runtime.queue.accept(AcceptedRollout(request.rollout_id, execute, limit, on_end=ended))


def _with_nulls(tool: JsonObject) -> JsonObject:
    """A tool as trainers of this generation read it: each parameter has `description` and `enum`, null when unset."""
    function = tool.get("function") or {}
    parameters = function.get("parameters") or {}
    named = {
        name: {"description": None, "enum": None, **schema} if isinstance(schema, dict) else schema
        for name, schema in (parameters.get("properties") or {}).items()
    }
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": named}}}


def response_of(run: LoopRun, outcome: RolloutOutcome) -> RolloutResponse:
    """The terminal message: the loop's own result, or ERROR with what is known."""
    result, failure = run.result, outcome.failure
    if outcome.status == "success" and result is not None:
        try:
            return _response(run, result)
        except BadShape as exc:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in exc.errors())
            message = f"the result of run is not valid: {said}"
        except ValueError as exc:
            message = f"the result of run is not valid: {exc}"
        failure = Failure(phase=Phase.AGENT, category=Category.AGENT_ERROR, message=message)
    else:
        message = outcome.message or "the rollout ended without a result"
    return RolloutResponse(
        rollout_id=run.request.rollout_id,
        status=LoopStatus.ERROR,
        finish_reason="error",
        error_message=message,
        metrics=run.context._metrics() if run.context else None,
        failure=failure,
    )


def _response(run: LoopRun, result: RolloutResult) -> RolloutResponse:
    """The loop's result in words; ERROR with its conversation when only the reward is none."""
    reward, invalid = None, None
    try:
        reward = finite_reward(result.reward)
    except ValueError as exc:
        invalid = failure_of(exc, Phase.SCORE)
    return RolloutResponse(
        rollout_id=run.request.rollout_id,
        status=LoopStatus.ERROR if invalid else LoopStatus(result.status),
        final_messages=result.final_messages,
        finish_reason="error" if invalid else result.finish_reason,
        error_message=invalid.message if invalid else result.error_message,
        reward=reward,
        metrics=result.metrics or (run.context._metrics() if run.context else None),
        failure=invalid,
    )


def add_init_routes(app: RolloutApp, service: LoopService, later: RolloutService, *, authenticated: bool) -> None:
    """The endpoints of `service`; the health is also that of the `later` generations."""
    limit = service.runtime.limits.max_body_bytes

    async def init(request: Request) -> Response:
        await service.runtime.pacer.pace()
        body = parse(RolloutRequest, await read_body(request, limit))
        return Response(await service.init(body), status_code=202, media_type="application/json")

    async def platform_health(_: Request) -> Response:
        if not authenticated:
            raise HttpProblem(404, "this server has no API key")
        return reply_json(service.health())

    async def health(_: Request) -> Response:
        return reply_json({**later.health().to_dict(), **service.health()})

    app.add_endpoints({INIT: init, PLATFORM_HEALTH: platform_health, HEALTH: health})
