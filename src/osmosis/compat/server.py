"""The server of 0.2: `/v1/rollout/init`, with `POST /rollout` of the later generations beside it, on one queue."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import aiohttp
import orjson
from fastapi import APIRouter, FastAPI, HTTPException, Response
from pydantic import ValidationError as BadShape

from osmosis.base.jsonable import JsonObject
from osmosis.base.paths import DEFAULT_PLATFORM_URL
from osmosis.compat.llm_clients import OsmosisLLMClient
from osmosis.compat.loop_backend import LoopBackend, ToolAsker, check_limits, checked_run, tool_dicts, trace_into
from osmosis.compat.registration import Registrar, Registration
from osmosis.compat.settings import RolloutSettings, get_settings
from osmosis.records.protocol import v02
from osmosis.records.protocol.messages import ARTIFACT_VARIABLE, INSTANCE_VARIABLE
from osmosis.records.protocol.v02 import OpenAIFunctionToolSchema
from osmosis.records.run.rollout import Phase
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.classify import agent_error, describe, failure_of
from osmosis.sdk.messages import Prompts
from osmosis.sdk.sandbox import opening_from, sandbox_while
from osmosis.sdk.types import finite_reward
from osmosis.serve.http import document, encode_record, open_session, reply
from osmosis.serve.server import app as rollout_app
from osmosis.serve.server.callbacks import DeliveryPolicy, Post
from osmosis.serve.server.queue import AcceptedRollout, NotAccepted, RolloutOutcome, ServeLimits
from osmosis.serve.server.rollouts import RolloutService, ServerRuntime
from osmosis.serve.server.trace_files import TraceFolder

log = logging.getLogger("osmosis.serve")

Hook = Callable[[], Awaitable[None]]


class LoginCredentials(Protocol):
    @property
    def access_token(self) -> str: ...


@dataclass(frozen=True)
class LoopServerSettings:
    max_concurrent: int | None = None
    record_ttl_s: float | None = None  # How long a finished rollout answers retried init requests
    settings: RolloutSettings | None = None
    api_key: str | None = None
    debug_dir: str | os.PathLike[str] | None = None
    lifespan: rollout_app.Lifespan | None = None
    limits: ServeLimits | None = None
    delivery_policy: DeliveryPolicy = field(default_factory=DeliveryPolicy)
    spool_dir: Path | None = None
    registration: Registration | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


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
) -> FastAPI:
    """Return a FastAPI app that serves `agent_loop`. `max_concurrent` and `record_ttl_seconds` override `settings`
    (`ValueError` unless positive). `debug_dir` gets `<unix seconds>/<rollout_id>.jsonl` traces. `credentials`,
    `server_host` and `server_port` together register the server."""
    registration = None
    if credentials is not None and server_host and server_port:
        registration = Registration(
            platform_url=os.environ.get("OSMOSIS_PLATFORM_URL", DEFAULT_PLATFORM_URL),
            token=credentials.access_token,
            host=server_host,
            port=server_port,
            agent_name=agent_loop.name,
            api_key=api_key,
            public_host=os.environ.get("OSMOSIS_PUBLIC_HOST"),
        )
    return build_loop_server(
        agent_loop,
        LoopServerSettings(
            max_concurrent=max_concurrent,
            record_ttl_s=record_ttl_seconds,
            settings=settings,
            api_key=api_key,
            debug_dir=debug_dir,
            lifespan=_lifespan(on_startup, on_shutdown),
            registration=registration,
        ),
    )


def build_loop_server(loop: RolloutAgentLoop, server: LoopServerSettings) -> FastAPI:
    settings = server.settings or get_settings()
    if settings.max_metadata_size_bytes != v02.DEFAULT_MAX_METADATA_SIZE_BYTES:
        v02.set_max_metadata_size_bytes(settings.max_metadata_size_bytes)
    slots = int(_positive("max_concurrent", server.max_concurrent, settings.server.max_concurrent_rollouts))
    ttl_s = _positive("record_ttl_seconds", server.record_ttl_s, settings.server.record_ttl_seconds)
    # A default limit would be a second, hidden bound on concurrent rollouts.
    connections = settings.client.max_connections if "max_connections" in settings.client.model_fields_set else 0
    policy = server.delivery_policy
    default_limits = ServeLimits(rollout_timeout_s=settings.server.request_timeout_seconds, keep_s=ttl_s)
    runtime = ServerRuntime(
        slots,
        server.limits or default_limits,
        spool_dir=server.spool_dir or rollout_app.default_spool_folder(server.environ, loop.name),
        delivery_policy=replace(policy, parallel=min(connections or policy.parallel, policy.parallel)),
    )
    if server.registration is not None:
        Registrar(server.registration, settings.server).attach(runtime)
    key, environ = server.api_key, server.environ
    app = rollout_app.build_app(f"Osmosis rollout server: {loop.name}", runtime, server.lifespan, api_key=key)
    traces = rollout_app.open_trace_folder(server.debug_dir, runtime, key, environ)
    backend = LoopBackend(loop, max_concurrent=slots, traces=traces)
    files = (
        rollout_app.open_trajectory_writer(backend, runtime, key, environ) if environ.get(ARTIFACT_VARIABLE) else None
    )
    rollouts = RolloutService(backend, runtime, instance_id=environ.get(INSTANCE_VARIABLE), files=files)
    loops = LoopService(loop, runtime, settings, record_ttl_s=ttl_s, traces=traces, max_connections=connections)
    app.include_router(loop_routes(loops, rollouts, authenticated=bool(key)))
    app.include_router(rollout_app.rollout_routes(rollouts))
    app.state.rollouts = rollouts
    app.state.loops = loops
    return app


def _lifespan(on_startup: Hook | None, on_shutdown: Hook | None) -> rollout_app.Lifespan:
    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        if on_startup is not None:
            await on_startup()
        try:
            yield
        finally:
            if on_shutdown is not None:
                await on_shutdown()

    return live


def _positive(name: str, value: float | None, default: float) -> float:
    value = default if value is None else value
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value


@dataclass(eq=False, slots=True)
class StartedRollout:
    rollout_id: str
    answer: bytes | asyncio.Future[bytes]
    finished_at: float | None = None


@dataclass(eq=False)
class LoopRun:
    request: v02.RolloutRequest
    result: RolloutResult | None = None
    context: RolloutContext | None = None


class LoopService:
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
        self._started: dict[str, StartedRollout] = {}
        self._tools = ToolAsker(loop)
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        runtime.background.append(self.forget_finished)
        runtime.backends.append(self._close)

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def init(self, request: v02.RolloutRequest) -> bytes:
        key = request.idempotency_key or request.rollout_id
        earlier = self._started.get(key)
        if earlier is not None:
            if earlier.rollout_id != request.rollout_id:
                log.warning(
                    "rollout %s is not run: its idempotency key %s was used for rollout %s, whose answer it gets",
                    request.rollout_id,
                    key,
                    earlier.rollout_id,
                )
            return earlier.answer if isinstance(earlier.answer, bytes) else await asyncio.shield(earlier.answer)
        if request.rollout_id in self.runtime.queue.live:
            raise HTTPException(409, f"rollout {request.rollout_id!r} is running under another idempotency key")
        self.runtime.queue.check()
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        started = StartedRollout(request.rollout_id, answered)
        self._started[key] = started
        try:
            tools = await self._tools.ask(request)
            answer = orjson.dumps(
                {"rollout_id": request.rollout_id, "tools": [_with_nulls(tool) for tool in tool_dicts(tools)]}
            )
            # A result that an earlier process could not deliver is on its way: it must stay the only one.
            if not self.runtime.delivery.has(request.rollout_id):
                self._start(request, tools, started)
        except BaseException as exc:
            del self._started[key]
            is_refusal = isinstance(exc, (HTTPException, NotAccepted))
            problem = exc if is_refusal else HTTPException(500, f"get_tools raised {describe(exc)}")
            answered.set_exception(problem)
            answered.exception()  # retrieved: duplicates may not be waiting
            if is_refusal or not isinstance(exc, Exception):
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

    async def forget_finished(self) -> None:
        loop = asyncio.get_running_loop()
        every_s = min(self.settings.server.cleanup_interval_seconds, self._ttl_s)
        while True:
            await asyncio.sleep(every_s)
            oldest = loop.time() - self._ttl_s
            for key, started in list(self._started.items()):
                if started.finished_at is not None and started.finished_at < oldest:
                    del self._started[key]

    def _start(
        self, request: v02.RolloutRequest, tools: list[OpenAIFunctionToolSchema], started: StartedRollout
    ) -> None:
        run = LoopRun(request)

        async def execute(_: AcceptedRollout) -> RolloutOutcome:
            check_limits(request)
            if self._session is None or self._session.closed:
                self._session = open_session(self._max_connections)
            llm = OsmosisLLMClient(
                request.server_url, request.rollout_id, request.api_key, settings=self.settings, session=self._session
            )
            run.context = RolloutContext(request, tools, llm, time.monotonic())
            run.context.prompts = Prompts(type(self.loop))
            trace_into(run.context, self._traces, (request.api_key,))
            url = f"{request.server_url.rstrip('/')}/v1/rollouts/{request.rollout_id}"
            async with sandbox_while(opening_from(os.environ, url, request.api_key)):
                run.result = await checked_run(self.loop, run.context)
            return RolloutOutcome("success")

        def report(entry: AcceptedRollout) -> None:
            started.finished_at = entry.finished_at
            assert entry.outcome is not None
            url = request.server_url.rstrip("/") + "/v1/rollout/completed"
            body = encode_record(build_response(run, entry.outcome))
            self.runtime.delivery.send(Post(request.rollout_id, url, body, request.api_key))

        limit_s = self.settings.server.request_timeout_seconds
        self.runtime.queue.accept(AcceptedRollout(request.rollout_id, execute, limit_s, on_end=report))


def _with_nulls(tool: JsonObject) -> JsonObject:
    function = tool.get("function") or {}
    parameters = function.get("parameters") or {}
    properties = {
        name: {"description": None, "enum": None, **schema} if isinstance(schema, dict) else schema
        for name, schema in (parameters.get("properties") or {}).items()
    }
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": properties}}}


def build_response(run: LoopRun, outcome: RolloutOutcome) -> v02.RolloutResponse:
    result, failure = run.result, outcome.failure
    if outcome.status == "success" and result is not None:
        try:
            reward, invalid = None, None
            try:
                reward = finite_reward(result.reward)
            except ValueError as exc:
                invalid = failure_of(exc, Phase.SCORE)
            return v02.RolloutResponse(
                rollout_id=run.request.rollout_id,
                status=v02.LoopStatus.ERROR if invalid else v02.LoopStatus(result.status),
                final_messages=result.final_messages,
                finish_reason="error" if invalid else result.finish_reason,
                error_message=invalid.message if invalid else result.error_message,
                reward=reward,
                metrics=result.metrics or (run.context._metrics() if run.context else None),
                failure=invalid,
            )
        except BadShape as exc:
            problems = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
            message = f"the result of run is not valid: {problems}"
        except ValueError as exc:
            message = f"the result of run is not valid: {exc}"
        failure = agent_error(message)
    else:
        message = outcome.message or "the rollout ended without a result"
    return v02.RolloutResponse(
        rollout_id=run.request.rollout_id,
        status=v02.LoopStatus.ERROR,
        finish_reason="error",
        error_message=message,
        metrics=run.context._metrics() if run.context else None,
        failure=failure,
    )


def loop_routes(service: LoopService, rollouts: RolloutService, *, authenticated: bool) -> APIRouter:
    router = rollout_app.new_router(v02.RolloutRequest)

    @router.post(
        "/v1/rollout/init",
        status_code=202,
        **document(
            "0.2: start a rollout; a retried request gets the first answer",
            v02.InitResponse,
            (401, 409, 413, 422, 429, 500, 503),
        ),
    )
    async def init(request: v02.RolloutRequest) -> Response:
        return Response(await service.init(request), status_code=202, media_type="application/json")

    @router.get(
        "/platform/health",
        **document(
            "0.2: health for the platform the server is registered with; 404 without an API key",
            v02.LoopHealth,
            (401, 404),
        ),
    )
    async def platform_health() -> Response:
        if not authenticated:
            raise HTTPException(404, "this server has no API key")
        return reply(service.health())

    @router.get("/health", **document("Health; its keys identify the generation", v02.LoopHealth, bearer=None))
    async def health() -> Response:
        return reply({**rollouts.health().to_dict(), **service.health()})

    return router
