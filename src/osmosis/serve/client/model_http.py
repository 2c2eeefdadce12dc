"""Model calls over HTTP in every dialect, as the model proxy and the inference endpoint answer them. Until the first
piece an error of the model is an HTTP status, as without a stream; after it, the dialect's error event. A caller that
hangs up cancels the model call."""

import asyncio
import contextlib
import hmac
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol, TypeVar, cast

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError as BadShape

from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import end_tasks
from osmosis.dialects import CHAT, GEMINI, MESSAGES, RESPONSES, Call, Dialect, EndpointError, Envelope, dialect_of_path
from osmosis.dialects.call import OVERLOADED, ReplyStream, bad_request, estimate_tokens, normalize
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Model, Piece
from osmosis.records.base import Record
from osmosis.records.run.rollout import Category
from osmosis.serve import http

log = logging.getLogger("osmosis.serve")

Shape = TypeVar("Shape", bound=Record)
_CALLS = {"/chat/completions": CHAT, "/messages": MESSAGES, "/responses": RESPONSES}
_COUNTS = {"/messages/count_tokens": MESSAGES, "/responses/input_tokens": RESPONSES}
_STREAMED, _COUNTED = "streamGenerateContent", "countTokens"


def new_chat_app(title: str) -> FastAPI:
    app = FastAPI(title=title, version="1", openapi_url=None, separate_input_output_schemas=False)
    app.add_exception_handler(EndpointError, _answer_error)
    app.add_exception_handler(http.Disconnected, _answer_nobody)
    return app


async def _answer_error(request: Request, exc: Exception) -> Response:
    error = cast("EndpointError", exc)
    # Client libraries would retry what the proxy has already retried.
    headers = {"Retry-After": f"{error.retry_after:.0f}"} if error.retry_after else {"x-should-retry": "false"}
    dialect = dialect_of_path(request.url.path)
    # One harness gives up at 429, and asks again at 503.
    status = OVERLOADED if error.status == 429 and dialect is RESPONSES else error.status
    return http.reply(dialect.error_body(error), status, headers)


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


def bearer_of(request: Request) -> bytes | None:
    headers = request.headers
    token = http.parse_bearer(headers.get("Authorization", "").encode("latin-1"))
    key = headers.get("x-api-key") or headers.get("x-goog-api-key") or request.query_params.get("key")
    return token or (key.encode("latin-1") if key else None)


async def read_object(request: Request, limit: int) -> JsonObject:
    try:
        body = orjson.loads(await http.read_body(request, limit))
    except orjson.JSONDecodeError as exc:
        raise EndpointError(400, f"the body is not JSON: {exc}", Category.BAD_REQUEST.value) from exc
    if not isinstance(body, dict):
        raise EndpointError(400, "the body must be an object", Category.BAD_REQUEST.value)
    return body


async def read_record(request: Request, shape: type[Shape], limit: int) -> Shape:
    try:
        return shape.model_validate_json(await http.read_body(request, limit))
    except BadShape as exc:
        raise EndpointError(422, str(exc), Category.BAD_REQUEST.value) from exc


class ModelServer(Protocol):
    """Answers the calls of `model_routes`; every method raises `EndpointError` for a caller without its key."""

    max_body_bytes: int

    def authenticate(self, request: Request) -> object:
        """Check the key before the body is read; return what `answer` receives as `caller`."""

    async def answer(self, request: Request, caller: object, dialect: Dialect, call: Call) -> Response: ...

    def model_names(self) -> list[str]: ...


def model_routes(server: ModelServer, prefix: str) -> APIRouter:
    """Return the route of all dialects below a prefix. Clients add `/v1` to it, or expect it there already."""
    router = APIRouter()

    async def handle(request: Request) -> Response:
        rest = "/" + request.path_params["rest"].rstrip("/")
        path = rest.removeprefix("/v1")
        version, _, target = rest.partition("/models/")
        is_google = version in ("/v1", "/v1beta", "/v1alpha") and bool(target)
        dialect = GEMINI if is_google else _CALLS.get(path) or _COUNTS.get(path)
        caller = server.authenticate(request)
        if path == "/models" or rest in ("/v1beta/models", "/v1alpha/models"):
            return http.reply(models_body(request, server.model_names()))
        if dialect is None or request.method != "POST":
            raise EndpointError(404, f"{request.method} {rest} is not answered by a model", "not_found")
        call = dialect.parse(await read_object(request, server.max_body_bytes))
        counts = path in _COUNTS
        if is_google:
            call.model, _, method = target.rpartition(":")
            call.stream, counts = method == _STREAMED, method == _COUNTED
        return count_tokens(dialect, call) if counts else await server.answer(request, caller, dialect, call)

    # Starlette's own route: FastAPI would look for dependencies at every call.
    router.add_route(f"{prefix}/{{rest:path}}", handle, methods=["GET", "POST"], include_in_schema=False)
    return router


def models_body(request: Request, names: list[str]) -> JsonObject:
    if "x-goog-api-key" in request.headers:
        methods = ["generateContent", _STREAMED, _COUNTED]
        return {"models": [{"name": f"models/{name}", "supportedGenerationMethods": methods} for name in names]}
    date = {"created_at": "2026-01-01T00:00:00Z", "display_name": "", "type": "model"}
    shape = date if "anthropic-version" in request.headers else {"object": "model", "created": 0, "owned_by": "osmosis"}
    more = {"has_more": False, "first_id": names[0], "last_id": names[-1]} if names else {"has_more": False}
    return {"object": "list", "data": [{"id": name, **shape} for name in names], **more}


def count_tokens(dialect: Dialect, call: Call) -> Response:
    count = estimate_tokens(call.messages, call.tools)
    if dialect is GEMINI:
        return http.reply({"totalTokens": count})
    return http.reply({"input_tokens": count, **({"object": "response.input_tokens"} if dialect is RESPONSES else {})})


async def answer_call(
    request: Request,
    dialect: Dialect,
    call: Call,
    question: ChatRequest,
    complete: Callable[[ChatRequest], Awaitable[Completion]],
    envelope: Envelope,
    *,
    with_tokens: bool = True,
) -> Response:
    """Answer a call, whole or as server-sent events, as it asks. `with_tokens`: chat completions carry token ids."""
    if not call.stream:
        done = await http.unless_disconnected(request, complete(question))
        if not with_tokens:
            done.token_ids = done.logprobs = done.prompt_token_ids = None
        return http.reply(dialect.render(call, done, envelope))
    pieces = _Pieces()
    question.on_piece = pieces.put
    answering = asyncio.ensure_future(complete(question))
    answering.add_done_callback(lambda _: pieces.finish())
    try:
        first = await http.unless_disconnected(request, pieces.take())
        # Without a piece it has failed, or comes whole.
        completion = None if first else await answering
    except BaseException:
        await end_tasks(answering)
        raise
    if completion is not None:
        envelope.model, envelope.raw_id = completion.model or envelope.model, completion.raw_id
    events = _events(dialect.stream(call, envelope), first, answering, pieces)
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _events(
    stream: ReplyStream, first: list[Piece], answering: asyncio.Future[Completion], pieces: "_Pieces"
) -> AsyncIterator[bytes]:
    head, batch = stream.begin(), first
    try:
        while batch:
            yield head + b"".join([stream.delta(piece.delta, piece.logprobs) for piece in batch])
            head = b""
            batch = await pieces.take()
        try:
            last = stream.finish(await answering)
        except EndpointError as error:
            last = stream.fail(error)
        except Exception as error:  # a border: a stream that just ended would pass for a whole answer
            log.exception("an answer broke off")
            last = stream.fail(EndpointError(500, f"{type(error).__name__} in the proxy", Category.UNKNOWN.value))
        yield head + last
    finally:
        await end_tasks(answering)


class _Pieces:
    def __init__(self) -> None:
        self._waiting: list[Piece] = []
        self._news = asyncio.Event()
        self._finished = False

    def put(self, piece: Piece) -> None:
        self._waiting.append(piece)
        self._news.set()

    def finish(self) -> None:
        self._finished = True
        self._news.set()

    async def take(self) -> list[Piece]:
        await self._news.wait()
        batch, self._waiting = self._waiting, []
        if not self._finished:
            self._news.clear()
        return batch


MAX_BODY = 64 * 1024 * 1024
OBEYED = frozenset(
    {"temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "tool_choice", "logprobs"}
)
IGNORED = frozenset({"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"})
"""Parameters that name the caller and the billing, which changes no answer here."""
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
"""Values with which a parameter asks for nothing."""
RETRY_S = 5.0
_STATUS = {
    Category.BAD_REQUEST.value: 400,
    Category.CONTEXT_LENGTH.value: 400,
    Category.RATE_LIMIT.value: 429,
    Category.CONNECTION.value: OVERLOADED,
    Category.SERVER_DIED.value: OVERLOADED,
    Category.TIMEOUT.value: 504,
}


@dataclass(eq=False, repr=False)
class InferenceEndpoint:
    """An HTTP server over one model, which wants one key. A parameter that the model cannot obey is refused by name
    where it changes the answer. `answered` counts whole answers; `on_answer` is called after each."""

    model: Model
    _: KW_ONLY
    name: str
    key: str
    time_limit_s: float
    on_answer: Callable[[], None] | None = None
    max_body_bytes: int = MAX_BODY
    answered: int = 0
    _in_flight: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def __post_init__(self) -> None:
        self._idle.set()

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> str:
        app = new_chat_app("Osmosis inference endpoint")
        app.include_router(model_routes(self, ""))
        listener = http.bind(host, port)
        await self._serving.enter_async_context(http.listening(app, listener))
        return f"{http.url_of(listener)}/v1"

    async def drained(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def close(self) -> None:
        await self._serving.aclose()

    def authenticate(self, request: Request) -> object:
        token = bearer_of(request)
        if token is None or not hmac.compare_digest(token, self.key.encode()):
            raise EndpointError(401, "the key is missing or wrong: send it as Authorization: Bearer KEY", "auth")
        return None

    def model_names(self) -> list[str]:
        return [self.name]

    async def answer(self, request: Request, caller: object, dialect: Dialect, call: Call) -> Response:
        question = chat_request(dialect, call)
        question.rollout_id = f"chat-{next(self._numbers)}"
        with_tokens = bool(call.params.get("logprobs"))
        return await answer_call(
            request, dialect, call, question, self._complete, Envelope(self.name), with_tokens=with_tokens
        )

    async def _complete(self, question: ChatRequest) -> Completion:
        self._in_flight += 1
        self._idle.clear()
        try:
            done = await asyncio.wait_for(self.model.complete(question), self.time_limit_s)
        except asyncio.TimeoutError:
            message = f"no answer within {self.time_limit_s:.0f} s: ask for fewer tokens (max_tokens)"
            raise EndpointError(504, message, Category.TIMEOUT.value) from None
        except ModelError as error:
            retry = error.retry_after or RETRY_S if error.category == Category.CONNECTION.value else None
            status = _STATUS.get(error.category, 500)
            raise EndpointError(status, error.message, error.category, retry_after=retry) from error
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
        self.answered += 1
        if self.on_answer is not None:
            self.on_answer()
        done.model = self.name
        return done


def chat_request(dialect: Dialect, call: Call) -> ChatRequest:
    """Return the request for the model; raise `EndpointError` for what it cannot obey. Harnesses send sampling
    parameters that nobody chose: those of other dialects than chat that mean nothing here are left out."""
    if not call.messages:
        bad_request("messages must be a list of objects, at least one")
    if call.tools is not None and not all(isinstance(tool, dict) for tool in call.tools):
        bad_request("tools must be a list of objects")
    params: JsonObject = {}
    for key, value in call.params.items():
        neutral = NEUTRAL.get(key)
        if key in IGNORED or (dialect is not CHAT and key not in OBEYED and key != "response_format"):
            continue
        if neutral is None and key not in OBEYED:
            bad_request(f"{key} is not supported: leave it out")
        if neutral is not None and value not in neutral:
            possible = ", ".join(map(str, neutral))
            bad_request(f"{key} = {str(value)[:100]} is not supported: leave it out (possible: {possible})")
        if key in OBEYED:
            params[key] = value
    normalize(call)
    return ChatRequest(messages=call.messages, tools=call.tools, params=params)
