"""The model proxy: the model endpoint that rollouts call and that takes their callbacks. Each rollout has its own URL
prefix and its own bearer; generation 0.2 names the rollout in the body instead. Every parameter is forwarded to the
model or refused (another endpoint or key; `n` above 1 in training and in streams), except those the gate itself obeys:
`model` (it has one), `stream`, `stream_options`, `rollout_id`, in generation 0.2 also `logprobs`, which its clients
always set.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from osmosis.base.json_types import JsonObject
from osmosis.errors import ModelError
from osmosis.llm.chat_format import completion_body
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.rollout import Category, ModelCall
from osmosis.records.sandbox_order import SandboxAnswer, SandboxOrder
from osmosis.records.wire import CallbackReply, CompletionCallback, GraderCallback
from osmosis.records.wire02 import ChatCompletionsRequest, CompletionsResponse, RolloutResponse
from osmosis.records.wire_checks import check_rollout_id
from osmosis.serve.endpoints import DeclaredEndpoint
from osmosis.serve.server.auth import token_of

from .gate_http import REPEATED_ALREADY, EndpointError, answer_errors, json_object, json_response, shaped
from .model_endpoint import RolloutEndpoint
from .sandboxes import Sandboxes
from .streamed import Pieces, streamed

log = logging.getLogger("osmosis.serve")

MAX_BODY = 64 * 1024 * 1024
TOOLS_WAIT_S = 30.0
CLOSED_KEPT = 1024
MOST_CHOICES = 128
_NOT_PARAMS = {"messages", "tools", "model", "stream", "stream_options", "rollout_id", "n"}
_ROUTING = {"api_key", "api_base", "base_url", "api_version", "custom_llm_provider", "headers", "extra_headers"}
"""Some models take these as arguments: a rollout would send the gate's key wherever it likes."""
_STATUS = {
    Category.AUTH.value: 401,
    Category.MODEL_NOT_FOUND.value: 404,
    Category.BAD_REQUEST.value: 400,
    Category.CONTEXT_LENGTH.value: 400,
}
CHAT = DeclaredEndpoint(
    "POST",
    "/v1/rollouts/{rollout_id}/chat/completions",
    "A model call of a rollout, plain or streamed",
    ChatCompletionsRequest,
    CompletionsResponse,
    errors=(400, 401, 404, 424),
    bearer="rolloutKey",
)
COMPLETION = DeclaredEndpoint(
    "POST",
    "/v1/rollouts/{rollout_id}/completion",
    "0.3: the workflow ended",
    CompletionCallback,
    CallbackReply,
    errors=(401, 404, 422),
    bearer="callbackKey",
)
GRADER = DeclaredEndpoint(
    "POST",
    "/v1/rollouts/{rollout_id}/grader",
    "0.3: the grader ended",
    GraderCallback,
    CallbackReply,
    errors=(401, 404, 422),
    bearer="callbackKey",
)
CHAT02 = DeclaredEndpoint(
    "POST",
    "/v1/chat/completions",
    "0.2: a model call; the rollout is named in the body",
    ChatCompletionsRequest,
    CompletionsResponse,
    errors=(400, 401, 404, 424),
    bearer="rolloutKey",
)
COMPLETED02 = DeclaredEndpoint(
    "POST",
    "/v1/rollout/completed",
    "0.2: the terminal result",
    RolloutResponse,
    CallbackReply,
    errors=(401, 404, 422),
    bearer="rolloutKey",
)
SANDBOX = DeclaredEndpoint(
    "POST",
    "/v1/rollouts/{rollout_id}/sandbox",
    "What a rollout's sandbox, which is beside it, is to do",
    SandboxOrder,
    SandboxAnswer,
    errors=(401, 404, 422),
    bearer="rolloutKey",
)
HEALTH = DeclaredEndpoint("GET", "/health", "Health", bearer=None)
ENDPOINTS = (CHAT, COMPLETION, GRADER, CHAT02, COMPLETED02, SANDBOX, HEALTH)


class GateObserver(Protocol):
    """Hears every model call of every rollout, with the answer in full: its token ids too, where the model gave any."""

    def opened(self, endpoint: RolloutEndpoint) -> None:
        """A rollout begins; with an id that was there before, it begins anew."""
        ...

    def model_call(
        self, endpoint: RolloutEndpoint, asked: ChatRequest, call: ModelCall, done: Completion | None
    ) -> None:
        """`done` is None when the call failed; `call.error` then says why."""
        ...


class TrainGate:
    """An HTTP server over one model, on loopback unless it is told otherwise.

    `start` returns the base URL; `open_rollout` makes the per-rollout endpoint; `close_rollout` forgets it.
    """

    def __init__(
        self,
        model: Model,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise_url: str = "",
        observer: GateObserver | None = None,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        """`advertise_url`: what rollouts are told in the place of host and port; `{port}` is the latter. `sandboxes`:
        those of rollouts that are in a boundary; None: this endpoint offers none."""
        self.model = model
        self.base_url = ""
        self._host = host
        self._port = port
        self._advertise_url = advertise_url
        self._observer = observer
        self._sandboxes = sandboxes
        self._open: dict[str, RolloutEndpoint] = {}
        self._closed: OrderedDict[str, RolloutEndpoint] = OrderedDict()
        self._runner: web.AppRunner | None = None

    async def start(self, listener: socket.socket | None = None) -> str:
        """Answers at the URL it returns: that of `listener`, which may hold callers already, else at one of its own."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[answer_errors])
        handlers = {
            CHAT: self._chat,
            COMPLETION: self._completion,
            GRADER: self._grader,
            CHAT02: self._chat02,
            COMPLETED02: self._completed02,
            SANDBOX: self._sandbox,
            HEALTH: self._health,
        }
        for declared, handler in handlers.items():
            app.router.add_route(declared.method, declared.path, handler)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, handler_cancellation=True)
        await self._runner.setup()
        own = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await (own if listener is None else web.SockSite(self._runner, listener, backlog=1024)).start()
        address = self._runner.addresses[0]
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.base_url = self._advertise_url.replace("{port}", str(address[1])) or f"http://{shown}:{address[1]}"
        return self.base_url

    @asynccontextmanager
    async def inside(self, listener: socket.socket | None) -> AsyncIterator[str]:
        """Also answers on a socket in a rollout server's own network; the URL that its rollouts are told. None: that of
        all others."""
        if listener is None:
            yield self.base_url
            return
        assert self._runner is not None
        host, port = listener.getsockname()[:2]
        site = web.SockSite(self._runner, listener.dup())
        await site.start()
        try:
            yield f"http://{host}:{port}"
        finally:
            await site.stop()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def open_rollout(
        self, rollout_id: str, *, row_index: int = 0, attempt: int = 0, base_url: str = ""
    ) -> RolloutEndpoint:
        """The endpoint of one rollout, which is told `base_url` if that is given; `ValueError` for an unsafe id or one
        that is already open."""
        check_rollout_id(rollout_id)
        if rollout_id in self._open:
            raise ValueError(f"rollout {rollout_id} is already open")
        endpoint = RolloutEndpoint(rollout_id, base_url or self.base_url, row_index=row_index, attempt=attempt)
        endpoint.know_tools(None)
        self.take_over(endpoint)
        return endpoint

    def take_over(self, endpoint: RolloutEndpoint) -> None:
        """Answers a rollout that was opened before this gate was."""
        self._open[endpoint.rollout_id] = endpoint
        if self._observer is not None:
            self._observer.opened(endpoint)

    def close_rollout(self, endpoint: RolloutEndpoint) -> None:
        """Later model calls of this rollout are answered 404; a repeated callback is still acknowledged for a while."""
        if self._open.get(endpoint.rollout_id) is endpoint:
            del self._open[endpoint.rollout_id]
        endpoint.close()
        if self._sandboxes is not None:
            self._sandboxes.close(endpoint.rollout_id)
        self._closed[endpoint.rollout_id] = endpoint
        while len(self._closed) > CLOSED_KEPT:
            self._closed.popitem(last=False)

    async def _health(self, _: web.Request) -> web.Response:
        return json_response({"status": "healthy", "service": "traingate", "open_rollouts": len(self._open)})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        endpoint = self._endpoint(request.match_info["rollout_id"], request, "bearer")
        return await self._answer(endpoint, request, await json_object(request))

    async def _chat02(self, request: web.Request) -> web.StreamResponse:
        self._check_known(request)
        body = await json_object(request)
        endpoint = self._endpoint(str(body.get("rollout_id", "")), request, "bearer")
        body.pop("logprobs", None)  # always on in this generation, also against models that refuse it
        if "tools" not in body:
            try:
                await endpoint.tools_known(TOOLS_WAIT_S)
            except asyncio.TimeoutError:
                raise EndpointError(
                    424, "the server never answered the rollout's init request", Category.BAD_REQUEST.value
                ) from None
            body["tools"] = endpoint.tools
        return await self._answer(endpoint, request, body)

    async def _completion(self, request: web.Request) -> web.Response:
        endpoint = self._endpoint(request.match_info["rollout_id"], request, "callback_key", closed=True)
        message = shaped(CompletionCallback, await request.read())
        endpoint.take_completion(message, final=False)
        return json_response(self._ack(endpoint))

    async def _grader(self, request: web.Request) -> web.Response:
        endpoint = self._endpoint(request.match_info["rollout_id"], request, "callback_key", closed=True)
        endpoint.take_grader(shaped(GraderCallback, await request.read()))
        return json_response(self._ack(endpoint))

    async def _completed02(self, request: web.Request) -> web.Response:
        self._check_known(request)
        message = shaped(RolloutResponse, await request.read())
        endpoint = self._endpoint(message.rollout_id, request, "bearer", closed=True)
        endpoint.take_response(message)
        return json_response({"status": "ok"})

    async def _sandbox(self, request: web.Request) -> web.Response:
        endpoint = self._endpoint(request.match_info["rollout_id"], request, "bearer")
        if self._sandboxes is None:
            raise EndpointError(404, "no sandboxes are offered here", "not_found")
        order = shaped(SandboxOrder, await request.read())
        return json_response((await self._sandboxes.answer(endpoint.rollout_id, order)).to_dict())

    def _ack(self, endpoint: RolloutEndpoint) -> JsonObject:
        """The acknowledgement carries what the gate knows and the rollout does not: usage and cost of each call."""
        calls = [
            {
                "prompt_tokens": call.usage.prompt_tokens,
                "completion_tokens": call.usage.completion_tokens,
                "cached_tokens": call.usage.cached_tokens,
                "cost_usd": call.usage.cost_usd,
                "model_name": call.model,
            }
            for call in endpoint.calls
            if call.error is None
        ]
        name = self.model.spec.name
        samples = {endpoint.rollout_id: {"model_name": name, "llm_call_metrics": calls}}
        return {"status": "ok", "trajectory": {"model_name": name, "samples": samples}}

    def _check_known(self, request: web.Request) -> None:
        """Where others can call: a body that names its rollout is not read for who has the token of none."""
        if not self._advertise_url:
            return
        token = _token(request)
        known = (endpoint.bearer.encode() for table in (self._open, self._closed) for endpoint in table.values())
        if token is None or not any(hmac.compare_digest(token, bearer) for bearer in known):
            raise EndpointError(401, "the bearer token is missing or belongs to no rollout", "auth")

    def _endpoint(self, rollout_id: str, request: web.Request, key: str, *, closed: bool = False) -> RolloutEndpoint:
        endpoint = self._open.get(rollout_id) or (self._closed.get(rollout_id) if closed else None)
        if endpoint is None:
            raise EndpointError(404, f"no open rollout {rollout_id!r} here", "not_found")
        token = _token(request)
        if token is None or not hmac.compare_digest(token, getattr(endpoint, key).encode()):
            raise EndpointError(401, "the bearer token is missing or belongs to another rollout", "auth")
        return endpoint

    async def _answer(self, endpoint: RolloutEndpoint, request: web.Request, body: JsonObject) -> web.StreamResponse:
        asked = self._asked(endpoint, body)
        name = self.model.spec.name
        if not body.get("stream"):
            return json_response(completion_body(await self._complete(endpoint, asked), model=name))
        options = body.get("stream_options")
        with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        pieces = Pieces()
        asked.on_piece = pieces.put
        answering = asyncio.create_task(self._complete(endpoint, asked))
        return await streamed(request, answering, pieces, model=name, with_usage=with_usage)

    async def _complete(self, endpoint: RolloutEndpoint, asked: ChatRequest) -> Completion:
        """The model's answer, kept with the rollout; `EndpointError` when there is none."""
        started = time.perf_counter()
        reached = endpoint.limits.reached(endpoint.calls, len(asked.messages)) if endpoint.limits is not None else None
        if reached is not None:
            endpoint.limit_reached = reached
            raise EndpointError(400, f"this rollout is over: {reached}", Category.BUDGET.value)
        endpoint.offered = asked.tools or endpoint.offered
        try:
            done = await self.model.complete(asked)
        except ModelError as exc:
            self._observe(endpoint, asked, endpoint.record_failure(started, asked.messages, exc), None)
            status = _STATUS.get(exc.category, REPEATED_ALREADY)
            raise EndpointError(status, exc.message, exc.category) from exc
        self._observe(endpoint, asked, endpoint.record(started, asked.messages, done), done)
        return done

    def _asked(self, endpoint: RolloutEndpoint, body: JsonObject) -> ChatRequest:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise EndpointError(400, "messages must be a list of objects", Category.BAD_REQUEST.value)
        n = body.get("n")
        if n is not None and not (isinstance(n, int) and 1 <= n <= MOST_CHOICES):
            raise EndpointError(400, f"n must be between 1 and {MOST_CHOICES}", Category.BAD_REQUEST.value)
        if n not in (None, 1) and (body.get("stream") or self._observer is not None):
            why = "one conversation is trained" if self._observer is not None else "a stream has one answer"
            raise EndpointError(400, f"n must be 1: {why}", Category.BAD_REQUEST.value)
        if routing := sorted(_ROUTING & body.keys()):
            message = f"{', '.join(routing)}: a rollout cannot choose the endpoint or key of its model"
            raise EndpointError(400, message, Category.BAD_REQUEST.value)
        tools = body.get("tools") or None
        if tools is not None and not isinstance(tools, list):
            raise EndpointError(400, "tools must be a list", Category.BAD_REQUEST.value)
        params = {key: value for key, value in body.items() if key not in _NOT_PARAMS and value is not None}
        if n not in (None, 1):
            params["n"] = n
        return ChatRequest(
            messages=messages,
            tools=tools,
            params=params,
            rollout_id=endpoint.rollout_id,
            row_index=endpoint.row_index,
            attempt=endpoint.attempt,
            on_wait=endpoint.wait,
        )

    def _observe(self, endpoint: RolloutEndpoint, asked: ChatRequest, call: ModelCall, done: Completion | None) -> None:
        if self._observer is not None:
            self._observer.model_call(endpoint, asked, call, done)


def _token(request: web.Request) -> bytes | None:
    return token_of(request.headers.get("Authorization", "").encode("utf-8", "surrogateescape"))
