"""Model calls over HTTP in every dialect, as the model proxy and the inference endpoint answer them. Until the first
piece an error of the model is an HTTP status, as without a stream; after it, the dialect's error event. A caller that
hangs up cancels the model call."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar, cast

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError as BadShape

from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import end_tasks
from osmosis.dialects import CHAT, GEMINI, MESSAGES, RESPONSES, Call, Dialect, EndpointError, Envelope, dialect_of_path
from osmosis.dialects.call import OVERLOADED, ReplyStream, estimate_tokens
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.base import Record
from osmosis.records.run.rollout import Category
from osmosis.serve.http import Disconnected, parse_bearer, read_body, reply, unless_disconnected

log = logging.getLogger("osmosis.serve")

Shape = TypeVar("Shape", bound=Record)
_CALLS = {"/chat/completions": CHAT, "/messages": MESSAGES, "/responses": RESPONSES}
_COUNTS = {"/messages/count_tokens": MESSAGES, "/responses/input_tokens": RESPONSES}
_STREAMED, _COUNTED = "streamGenerateContent", "countTokens"


def new_chat_app(title: str) -> FastAPI:
    app = FastAPI(title=title, version="1", openapi_url=None, separate_input_output_schemas=False)
    app.add_exception_handler(EndpointError, _answer_error)
    app.add_exception_handler(Disconnected, _answer_nobody)
    return app


async def _answer_error(request: Request, exc: Exception) -> Response:
    error = cast("EndpointError", exc)
    # Client libraries would retry what the proxy has already retried.
    headers = {"Retry-After": f"{error.retry_after:.0f}"} if error.retry_after else {"x-should-retry": "false"}
    dialect = dialect_of_path(request.url.path)
    # One harness gives up at 429, and asks again at 503.
    status = OVERLOADED if error.status == 429 and dialect is RESPONSES else error.status
    return reply(dialect.error_body(error), status, headers)


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


def bearer_of(request: Request) -> bytes | None:
    headers = request.headers
    token = parse_bearer(headers.get("Authorization", "").encode("latin-1"))
    key = headers.get("x-api-key") or headers.get("x-goog-api-key") or request.query_params.get("key")
    return token or (key.encode("latin-1") if key else None)


async def read_object(request: Request, limit: int) -> JsonObject:
    try:
        body = orjson.loads(await read_body(request, limit))
    except orjson.JSONDecodeError as exc:
        raise EndpointError(400, f"the body is not JSON: {exc}", Category.BAD_REQUEST.value) from exc
    if not isinstance(body, dict):
        raise EndpointError(400, "the body must be an object", Category.BAD_REQUEST.value)
    return body


async def read_record(request: Request, shape: type[Shape], limit: int) -> Shape:
    try:
        return shape.model_validate_json(await read_body(request, limit))
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
            return reply(models_body(request, server.model_names()))
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
        return reply({"totalTokens": count})
    return reply({"input_tokens": count, **({"object": "response.input_tokens"} if dialect is RESPONSES else {})})


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
    """Answer a call, whole or as server-sent events, as it asks; `complete` gives the answer. With `with_tokens`, whole
    chat completions carry token ids and log-probabilities, where the model gave any."""
    if not call.stream:
        done = await unless_disconnected(request, complete(question))
        if not with_tokens:
            done.token_ids = done.logprobs = done.prompt_token_ids = None
        return reply(dialect.render(call, done, envelope))
    pieces = _Pieces()
    question.on_piece = pieces.put
    answering = asyncio.ensure_future(complete(question))
    answering.add_done_callback(lambda _: pieces.finish())
    try:
        first = await unless_disconnected(request, pieces.take())
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
