"""The model proxy: the model endpoint that rollouts call and that takes their callbacks. Each rollout has its own URL
prefix and its own bearer, of which either names it. Every parameter of a chat completion is forwarded to the model or
refused, except those the proxy itself obeys (`model`, `stream`, `stream_options`, `rollout_id`). In the other dialects
agent programs set parameters that nobody chose: there the run's own win, and what was overridden is recorded."""

import hmac
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from typing import Protocol, cast

from fastapi import APIRouter, Request, Response
from typing_extensions import Self

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import CHAT, Call, Dialect, EndpointError
from osmosis.dialects.call import AGENT, MODEL_FAILED, bad_request, find_purpose, normalize, read_system
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.base import Record
from osmosis.records.protocol.messages import (
    CallbackReply,
    CompletionCallback,
    GraderCallback,
    ModelErrorReply,
    check_rollout_id,
)
from osmosis.records.protocol.v02 import ChatCompletionsRequest, CompletionsResponse
from osmosis.records.run.rollout import Category, ModelCall
from osmosis.records.run.rows import Row
from osmosis.records.sandbox import SandboxAnswer, SandboxOrder
from osmosis.sdk.user_code import LimitReached
from osmosis.serve import http
from osmosis.serve.client.model_http import answer_call, bearer_of, model_routes, new_chat_app, read_object, read_record
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint, question_hash
from osmosis.serve.client.sandboxes import Sandboxes

MAX_BODY = 64 * 1024 * 1024
CLOSED_KEPT = 1024
MOST_CHOICES = 128
_ROUTING = {"api_key", "api_base", "base_url", "api_version", "custom_llm_provider", "headers", "extra_headers"}
"""Arguments of some models with which a rollout could send the proxy's key anywhere."""
_ACKNOWLEDGED = {"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"}
_STATUS = {
    Category.AUTH.value: 401,
    Category.MODEL_NOT_FOUND.value: 404,
    Category.BAD_REQUEST.value: 400,
    Category.CONTEXT_LENGTH.value: 400,
}


class ProxyObserver(Protocol):
    def opened(self, endpoint: RolloutEndpoint) -> None:
        """Handle the start of a rollout; an id that was used before starts anew."""

    def model_call(
        self, endpoint: RolloutEndpoint, request: ChatRequest, call: ModelCall, done: Completion | None
    ) -> None:
        """Handle a call; `done` is None when it failed, and `call.error` then says why."""


@dataclass(eq=False, repr=False)
class ModelProxy:
    """An HTTP server over one model, on loopback by default: `async with ModelProxy(model) as proxy`."""

    model: Model
    _: KW_ONLY
    host: str = "127.0.0.1"
    port: int = 0
    advertise_url: str = ""  # The address that rollouts are told instead of host and port; `{port}` in it is the latter
    observer: ProxyObserver | None = None
    sandboxes: Sandboxes | None = None  # those of rollouts that run in a sandbox themselves; None offers none
    max_body_bytes: int = MAX_BODY
    base_url: str = ""
    _open: dict[str, RolloutEndpoint] = field(default_factory=dict)
    _closed: OrderedDict[str, RolloutEndpoint] = field(default_factory=OrderedDict)
    _serving: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.app = new_chat_app("Osmosis model proxy")
        self.app.include_router(rollout_routes(self))
        self.app.include_router(import_module("osmosis.compat.client").loop_routes(self))  # it is above this package
        for prefix in ("/v1/rollouts/{rollout_id}", ""):
            self.app.include_router(model_routes(self, prefix))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> str:
        listener = http.bind(self.host, self.port)
        self.base_url = self.advertise_url.replace("{port}", str(listener.getsockname()[1])) or http.url_of(listener)
        await self._serving.enter_async_context(http.listening(self.app, listener))
        return self.base_url

    async def close(self) -> None:
        await self._serving.aclose()

    @asynccontextmanager
    async def inside(self, listener: socket.socket | None) -> AsyncIterator[str]:
        """Answer also on a socket in a rollout server's own network; yield the URL that its rollouts are told."""
        if listener is None:
            yield self.base_url
            return
        async with http.listening(self.app, listener.dup()):
            yield http.url_of(listener)

    def open_rollout(
        self, rollout_id: str, *, model: RolloutModel | None = None, base_url: str = ""
    ) -> RolloutEndpoint:
        """Open the endpoint of one rollout, told `base_url` if given; raise `ValueError` for an unsafe or open id. Its
        calls are answered by its own `model`, by default one without limits over the proxy's."""
        check_rollout_id(rollout_id)
        if rollout_id in self._open:
            raise ValueError(f"rollout {rollout_id} is already open")
        if model is None:
            model = RolloutModel(self.model, Task(Row(index=0, data={}), 0, rollout_id))
        endpoint = RolloutEndpoint(rollout_id, base_url or self.base_url, model)
        self._open[rollout_id] = endpoint
        if self.observer is not None:
            self.observer.opened(endpoint)
        return endpoint

    def close_rollout(self, endpoint: RolloutEndpoint) -> None:
        if self._open.get(endpoint.rollout_id) is endpoint:
            del self._open[endpoint.rollout_id]
        endpoint.close()
        if self.sandboxes is not None:
            self.sandboxes.close(endpoint.rollout_id)
        self._closed[endpoint.rollout_id] = endpoint
        while len(self._closed) > CLOSED_KEPT:
            self._closed.popitem(last=False)

    def health(self) -> JsonObject:
        return {"status": "healthy", "service": "traingate", "open_rollouts": len(self._open)}

    def find_endpoint(
        self, rollout_id: str, request: Request, *, callback: bool = False, closed: bool = False
    ) -> RolloutEndpoint:
        """Return the endpoint of the request's bearer or callback key; raise `EndpointError` 404 or 401."""
        endpoint = self._open.get(rollout_id) or (self._closed.get(rollout_id) if closed else None)
        if endpoint is None:
            raise EndpointError(404, f"no open rollout {rollout_id!r} here", "not_found")
        key = endpoint.callback_key if callback else endpoint.bearer
        token = bearer_of(request)
        if token is None or not hmac.compare_digest(token, key.encode()):
            raise EndpointError(401, "the bearer token is missing or belongs to another rollout", "auth")
        return endpoint

    def check_bearer(self, request: Request) -> None:
        if self.advertise_url:
            self._find_by_bearer(request, self._open, self._closed)

    def _find_by_bearer(self, request: Request, *tables: Mapping[str, RolloutEndpoint]) -> RolloutEndpoint:
        token = bearer_of(request) or b""
        for table in tables:
            for endpoint in table.values():
                if hmac.compare_digest(token, endpoint.bearer.encode()):
                    return endpoint
        raise EndpointError(401, "the bearer token is missing or belongs to no rollout", "auth")

    def authenticate(self, request: Request) -> RolloutEndpoint:
        rollout_id = request.path_params.get("rollout_id")
        if rollout_id is not None:
            return self.find_endpoint(rollout_id, request)
        return self._find_by_bearer(request, self._open)

    def model_names(self) -> list[str]:
        return [self.model.spec.name]

    async def answer(self, request: Request, caller: object, dialect: Dialect, call: Call) -> Response:
        endpoint = cast("RolloutEndpoint", caller)
        turns, purpose = endpoint.turns, find_purpose(call, request.headers, read_system(call.messages))
        if dialect is not CHAT:
            normalize(call)
        turns.restore(call)
        envelope, digest = turns.envelope(self.model.spec.name), question_hash(call)

        async def complete(question: ChatRequest) -> Completion:
            if endpoint.model is None:
                raise EndpointError(404, f"no open rollout {endpoint.rollout_id!r} here", "not_found")
            try:
                try:
                    done = await endpoint.model.complete(question)
                except LimitReached as limit:
                    raise EndpointError(400, f"this rollout is over: {limit.reason}", Category.BUDGET.value) from limit
                except ModelError as exc:
                    self._observe(endpoint, question, endpoint.model.calls[-1], None)
                    raise EndpointError(_STATUS.get(exc.category, MODEL_FAILED), exc.message, exc.category) from exc
                self._observe(endpoint, question, endpoint.model.calls[-1], done)
                model_call = endpoint.model.calls[-1]
                model_call.purpose = purpose or None
                done.message = turns.add(envelope, digest, done.message, model_call)
                if purpose == AGENT:
                    endpoint.conversation = endpoint.model.messages = [*question.messages, done.message]
            finally:
                if purpose != AGENT and endpoint.model is not None:
                    endpoint.model.messages = endpoint.conversation
            return done

        question = self._question(endpoint, dialect, call)
        question.purpose = purpose
        return await answer_call(request, dialect, call, question, complete, envelope)

    def acknowledge(self, endpoint: RolloutEndpoint) -> JsonObject:
        calls = [
            {**call.usage.model_dump(include=_ACKNOWLEDGED), "model_name": call.model}
            for call in endpoint.calls
            if call.error is None
        ]
        name = self.model.spec.name
        samples = {endpoint.rollout_id: {"model_name": name, "llm_call_metrics": calls}}
        return {"status": "ok", "trajectory": {"model_name": name, "samples": samples}}

    def _question(self, endpoint: RolloutEndpoint, dialect: Dialect, call: Call) -> ChatRequest:
        params, n = call.params, call.params.pop("n", None)
        if n is not None and not (isinstance(n, int) and 1 <= n <= MOST_CHOICES):
            bad_request(f"n must be between 1 and {MOST_CHOICES}")
        if n not in (None, 1) and (call.stream or self.observer is not None):
            reason = "one conversation is trained" if self.observer is not None else "a stream has one answer"
            bad_request(f"n must be 1: {reason}")
        if routing := sorted(_ROUTING & params.keys()):
            bad_request(f"{', '.join(routing)}: a rollout cannot choose the endpoint or key of its model")
        if n not in (None, 1):
            params["n"] = n
        endpoint.left_out.update(call.left_out)
        if dialect is not CHAT or endpoint.overrides_sampling:
            endpoint.overridden.update(override_sampling(params, self.model.spec.params))
        return ChatRequest(call.messages, call.tools, params)

    def _observe(
        self, endpoint: RolloutEndpoint, question: ChatRequest, call: ModelCall, done: Completion | None
    ) -> None:
        if self.observer is not None:
            self.observer.model_call(endpoint, question, call, done)


def override_sampling(params: JsonObject, own: Mapping[str, object]) -> JsonObject:
    """Take from a call's parameters those that the run sets itself, and return them; shorter answers are allowed."""
    overridden: JsonObject = {}
    longest = own.get("max_tokens", own.get("max_completion_tokens"))
    for key in list(params):
        if key in ("max_tokens", "max_completion_tokens"):
            is_ours = isinstance(longest, int) and params[key] > longest
        else:
            is_ours = key in own or key == "top_k" or (key == "parallel_tool_calls" and params[key] is True)
        if is_ours:
            overridden[key] = params.pop(key)
    return overridden


def document_body(
    summary: str,
    request: type[Record],
    response: type[Record],
    statuses: Sequence[int],
    bearer: http.Bearer = "rolloutKey",
) -> JsonObject:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{request.__name__}"}}}
    documented_route = http.document(summary, response, statuses, bearer, ModelErrorReply)
    return documented_route | {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


def rollout_routes(proxy: ModelProxy) -> APIRouter:
    router = APIRouter(generate_unique_id_function=http.operation_id)

    @router.post(
        "/v1/rollouts/{rollout_id}/chat/completions",
        **document_body(
            "A model call of a rollout, plain or streamed",
            ChatCompletionsRequest,
            CompletionsResponse,
            (400, 401, 404, 424),
        ),
    )
    async def chat(rollout_id: str, request: Request) -> Response:
        endpoint = proxy.find_endpoint(rollout_id, request)
        return await proxy.answer(request, endpoint, CHAT, CHAT.parse(await read_object(request, MAX_BODY)))

    @router.post(
        "/v1/rollouts/{rollout_id}/completion",
        **document_body("0.3: the workflow ended", CompletionCallback, CallbackReply, (401, 404, 422), "callbackKey"),
    )
    async def completion(rollout_id: str, request: Request) -> Response:
        endpoint = proxy.find_endpoint(rollout_id, request, callback=True, closed=True)
        endpoint.take_completion(await read_record(request, CompletionCallback, MAX_BODY))
        return http.reply(proxy.acknowledge(endpoint))

    @router.post(
        "/v1/rollouts/{rollout_id}/grader",
        **document_body("0.3: the grader ended", GraderCallback, CallbackReply, (401, 404, 422), "callbackKey"),
    )
    async def grader(rollout_id: str, request: Request) -> Response:
        endpoint = proxy.find_endpoint(rollout_id, request, callback=True, closed=True)
        endpoint.take_grader(await read_record(request, GraderCallback, MAX_BODY))
        return http.reply(proxy.acknowledge(endpoint))

    @router.post(
        "/v1/rollouts/{rollout_id}/sandbox",
        **document_body(
            "What a rollout's sandbox, which is beside it, is to do", SandboxOrder, SandboxAnswer, (401, 404, 422)
        ),
    )
    async def sandbox(rollout_id: str, request: Request) -> Response:
        endpoint = proxy.find_endpoint(rollout_id, request)
        if proxy.sandboxes is None:
            raise EndpointError(404, "no sandboxes are offered here", "not_found")
        order = await read_record(request, SandboxOrder, MAX_BODY)
        return http.reply(await http.unless_disconnected(request, proxy.sandboxes.answer(endpoint.rollout_id, order)))

    @router.get("/health", summary="Health", response_description="Success", responses=http.errors(ModelErrorReply))
    async def health() -> Response:
        return http.reply(proxy.health())

    return router
