"""`POST /v1/rollout/init` and the health of generation 0.2: an agent loop is started in the background and its one
result is posted to the trainer's `/v1/rollout/completed` until it is taken. A repeated init gets the first answer;
a key that is used again for another rollout is refused, never silently answered.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import Request, Response
from pydantic import ValidationError as BadShape
from starlette.applications import Starlette

from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.wire02 import LoopStatus, RolloutRequest, RolloutResponse
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.classify import describe, failure_of
from osmosis.sdk.types import finite_reward

from .http import HttpProblem, parse, read_body, reply_json, wire_text
from .loop_backend import AskTools, checked_run, tool_dicts, trace_into
from .outcome import Outcome
from .queue import Draining, Entry, QueueFull
from .rollout_settings import RolloutSettings
from .runtime import ServerRuntime
from .spool import Post
from .traces import TraceFolder
from .trainer_model import TrainerModel


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


class LoopDesk:
    """The rollouts of `/v1/rollout/init`."""

    def __init__(
        self,
        loop: RolloutAgentLoop,
        runtime: ServerRuntime,
        settings: RolloutSettings,
        *,
        record_ttl_s: float,
        traces: TraceFolder | None = None,
    ) -> None:
        self.loop = loop
        self.runtime = runtime
        self.settings = settings
        self._ttl_s = record_ttl_s
        self._traces = traces
        self._started: dict[str, Started] = {}
        self._tools = AskTools(loop)
        runtime.background.append(self.clean)

    async def init(self, request: RolloutRequest) -> bytes:
        """The body of the 202; starts the rollout unless it is known."""
        key = request.idempotency_key or request.rollout_id
        known = self._started.get(key)
        if known is not None:
            if known.rollout_id != request.rollout_id:
                raise HttpProblem(409, f"the idempotency key {key!r} belongs to rollout {known.rollout_id!r}")
            return known.answer if isinstance(known.answer, bytes) else await asyncio.shield(known.answer)
        if self.runtime.desk.live(request.rollout_id) is not None:
            raise HttpProblem(409, f"rollout {request.rollout_id!r} is running under another idempotency key")
        self._admit()
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        started = Started(request.rollout_id, answered)
        self._started[key] = started
        try:
            tools = await self._tools.of(request)
            answer = orjson.dumps({"rollout_id": request.rollout_id, "tools": tool_dicts(tools)})
            # A result that an earlier process could not deliver is on its way: it must stay the only one.
            if not self.runtime.delivery.has(request.rollout_id):
                self._start(request, tools, started)
        except BaseException as exc:
            del self._started[key]
            problem = exc if isinstance(exc, HttpProblem) else HttpProblem(500, f"get_tools raised {describe(exc)}")
            answered.set_exception(problem)
            answered.exception()  # retrieved: duplicates may not be waiting
            if isinstance(exc, Exception):
                raise problem from exc
            raise
        answered.set_result(answer)
        started.answer = answer
        return answer

    def health(self) -> dict[str, Any]:
        return {
            "status": "healthy",
            "agent_loop": self.loop.name,
            "active_rollouts": self.runtime.desk.active,
            "completed_rollouts": self.runtime.desk.finished,
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

    def _admit(self) -> None:
        try:
            self.runtime.desk.check()
        except QueueFull:
            raise HttpProblem(429, "the queue is full", headers={"Retry-After": "5"}) from None
        except Draining:
            raise HttpProblem(503, "the server is shutting down", headers={"Retry-After": "30"}) from None

    def _start(self, request: RolloutRequest, tools: Any, started: Started) -> None:
        run = LoopRun(request)

        async def execute(_: Entry) -> Outcome:
            llm = TrainerModel(
                request.server_url,
                request.rollout_id,
                request.api_key,
                settings=self.settings,
                session=self.runtime.session(),
                turns=self.runtime.turns,
            )
            run.context = RolloutContext(request, tools, llm, time.monotonic())
            trace_into(run.context, self._traces, (request.api_key,))
            run.result = await checked_run(self.loop, run.context)
            return Outcome("success")

        def ended(entry: Entry) -> None:
            started.finished_at = entry.finished_at
            assert entry.outcome is not None
            url = request.server_url.rstrip("/") + "/v1/rollout/completed"
            body = wire_text(response_of(run, entry.outcome))
            self.runtime.delivery.send(Post(request.rollout_id, url, body, request.api_key))

        limit = self.settings.server.request_timeout_seconds
        try:
            self.runtime.desk.accept(Entry(request.rollout_id, execute, limit, on_end=ended))
        except (QueueFull, Draining):
            self._admit()
            raise


def response_of(run: LoopRun, outcome: Outcome) -> RolloutResponse:
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


def add_init_routes(app: Starlette, desk: LoopDesk, *, authenticated: bool) -> None:
    """The endpoints of `desk`."""
    limit = desk.runtime.limits.max_body_bytes

    async def init(request: Request) -> Response:
        await desk.runtime.turns.take()
        body = parse(RolloutRequest, await read_body(request, limit))
        return Response(await desk.init(body), status_code=202, media_type="application/json")

    async def platform_health(_: Request) -> Response:
        if not authenticated:
            raise HttpProblem(404, "this server has no API key")
        return reply_json(desk.health())

    app.router.add_route("/v1/rollout/init", init, methods=["POST"])
    app.router.add_route("/platform/health", platform_health, methods=["GET"])
