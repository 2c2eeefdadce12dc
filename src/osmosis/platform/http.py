"""HTTP of the platform. JSON bodies are read strictly, as they can be stored; answers have only the keys that were set.
Middleware is around every request: beyond `UNKNOWN_BYTES` its body needs a credential; its log line has no query."""

import functools
import hmac
import inspect
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import orjson
from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.datastructures import DefaultPlaceholder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis import errors
from osmosis.base.files import find_full_disk
from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback, parse_host
from osmosis.platform import Platform
from osmosis.platform.auth import tokens
from osmosis.platform.auth.dependencies import PlatformDep, bearer
from osmosis.platform.db import find_unavailable
from osmosis.platform.maintenance.telemetry import FIELDS, UNMATCHED, PlatformMetrics, request_id
from osmosis.platform.models import inference
from osmosis.platform.scheduling import leases
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import records_in

log = logging.getLogger("osmosis.platform")

MAX_DEPTH = 200  # JSON writers end at 254 levels, and what is stored is nested a few more
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonRequest(Request):
    async def json(self) -> object:
        if not hasattr(self, "_json"):
            raw = await self.body()
            try:
                value = orjson.loads(raw)
            except orjson.JSONDecodeError:  # the standard library names the place better, and reads NaN
                try:
                    value = json.loads(raw)
                except (UnicodeDecodeError, RecursionError) as error:
                    raise json.JSONDecodeError(f"{type(error).__name__}: {str(error)[:200]}", "", 0) from None
            if problem := find_unstorable(value):
                raise json.JSONDecodeError(problem, "", 0)
            self._json: object = value
        return self._json


class JsonResponse(JSONResponse):
    def render(self, content: object) -> bytes:
        try:
            return orjson.dumps(content)
        except TypeError:  # half a character, or a number beyond 64 bits
            text = json.dumps(_replace_infinite(content), ensure_ascii=False, separators=(",", ":"))
            return text.encode("utf-8", "replace")


async def get_reading(platform: PlatformDep) -> AbstractContextManager[Session]:
    return platform.db.read()


async def get_writing(platform: PlatformDep) -> AbstractContextManager[Session]:
    return platform.db.write()


Reading = Annotated[Session, Depends(get_reading)]
Writing = Annotated[Session, Depends(get_writing)]


def _in_session(endpoint: Callable[..., object]) -> Callable[..., object]:
    """Open an endpoint's `session` in the thread that runs it, and commit before its answer is checked: one of
    FastAPI's own would keep a connection, and the lock of the one writer, while it waits for further threads."""
    if "session" not in inspect.signature(endpoint).parameters:
        return endpoint

    @functools.wraps(endpoint)
    def run(session: AbstractContextManager[Session], **values: object) -> object:
        with session as opened:
            return endpoint(session=opened, **values)

    return run


class JsonRoute(APIRoute):
    """A route whose function may ask for a `session: Reading` or `Writing`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        # Records build their schemas late; FastAPI's checks warn unless a route's are built when it is declared.
        for hint in (*get_type_hints(endpoint).values(), options.get("response_model")):
            for record in records_in(hint):
                record.model_config["defer_build"] = False
        if isinstance(options.get("response_class"), DefaultPlaceholder):
            options["response_class"] = Response if options.get("status_code") == 204 else JsonResponse
        super().__init__(path, _in_session(endpoint), **{**options, "response_model_exclude_unset": True})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_strictly


def find_unstorable(value: object) -> str:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += item
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, str):
                if not item.isascii() and _SURROGATE.search(item):
                    return "text holds half a character (a lone surrogate)"
            elif isinstance(item, int) and not -(2**63) <= item < 2**63:
                return "a whole number does not fit 64 bits"
        if not inner:
            return ""
        level = inner
    return f"it is nested more than {MAX_DEPTH} levels deep"


def _replace_infinite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_infinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_infinite(item) for item in value]
    return value


def error_response(error: errors.OsmosisError) -> JSONResponse:
    wait = error.details.get("retry_after")
    return _answer(error.to_wire(), error.http_status, {} if wait is None else {"Retry-After": str(wait)})


def _answer(body: JsonObject, status: int, headers: Mapping[str, str] | None) -> JSONResponse:
    if id_ := request_id.get():
        body, headers = {**body, "request_id": id_}, {**(headers or {}), "X-Request-ID": id_}
    return JSONResponse(body, status_code=status, headers=headers)


def log_error(request: Request, error: Exception) -> errors.OsmosisError:
    """Log what is not the caller's mistake, a bug with its traceback, and return what to show of it."""
    path = "/shared/..." if request.url.path.startswith("/shared/") else request.url.path  # a link is a secret
    about, explained = f"{request.method} {path}", error if isinstance(error, errors.OsmosisError) else None
    explained = explained or find_full_disk(error, where="the platform") or find_unavailable(error)
    if explained is None:
        log.exception("%s failed", about, exc_info=error)
        message = f"internal error in {about}: {type(error).__name__}"
        return errors.InternalError(message, hint="see the platform's log: osmosis platform logs")
    if explained.http_status >= 500:
        log.error("%s: %s", about, explained)
    return explained


def handle_errors(app: FastAPI) -> None:
    # What only `Exception` catches is raised again after the answer, and uvicorn then closes the connection: right for
    # a bug, not for a disk that is full.
    @app.exception_handler(errors.OsmosisError)
    @app.exception_handler(OSError)
    @app.exception_handler(SQLAlchemyError)
    @app.exception_handler(Exception)
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return error_response(log_error(request, error))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        issues = [
            {"key": ".".join(str(part) for part in entry["loc"][1:]) or str(entry["loc"][0]), "message": entry["msg"]}
            for entry in error.errors()
        ]
        text = "; ".join(f"{issue['key']}: {issue['message']}" for issue in issues[:5])
        return error_response(errors.ValidationError(f"the request is malformed: {text}", issues=issues))

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        message = error.detail if error.status_code != 404 else f"no such path: {request.url.path}"
        rebuilt = errors.from_wire(error.status_code, {"message": str(message)})
        body = {"error": rebuilt.message, "message": rebuilt.message, "code": rebuilt.code}
        return _answer(body, error.status_code, error.headers)


request_log = logging.getLogger("osmosis.platform.requests")

ID_HEADER = "x-request-id"
_PLAIN = re.compile(r"^[A-Za-z0-9._-]{1,64}\Z")


@dataclass
class RequestLog:
    app: ASGIApp
    measurements: PlatformMetrics
    lines: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent_id = Headers(scope=scope).get(ID_HEADER, "")
        id_ = sent_id if _PLAIN.match(sent_id) else secrets.token_hex(8)
        request_id.set(id_)  # to the end of this task, which answers nothing else
        began = time.perf_counter()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID_HEADER] = id_
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", UNMATCHED)
            self.measurements.answered(scope["method"], route, status, seconds)
            if self.lines:
                client = scope.get("client")
                path = route if scope["path"].startswith("/shared/") else scope["path"]  # a link is a secret
                fields = {"method": scope["method"], "path": path, "status": status}
                fields |= {"seconds": round(seconds, 4), "client": client[0] if client else ""}
                request_log.info("%s %s: %d", scope["method"], path, status, extra={FIELDS: fields})


OLDEST = (0, 2, 0)
OLDEST_CURRENT = (0, 2, 24)
PREFIX = "/api/cli/"


def version_status(version: str | None) -> tuple[str, str]:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if match is None:
        return "current", ""
    client_version = tuple(int(part or 0) for part in match.groups())
    if client_version < OLDEST:
        return "unsupported", f"this platform does not support clients of version {version}; it needs 0.2 or later"
    if client_version < OLDEST_CURRENT:
        return "deprecated", f"client {version} is older than 0.2.24 and may not understand some answers"
    return "current", ""


@dataclass
class ClientVersions:
    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self.app(scope, receive, send)
            return
        status, message = version_status(Headers(scope=scope).get("x-osmosis-cli-version"))

        async def send_with_status(event: Message) -> None:
            if event["type"] == "http.response.start":
                headers = MutableHeaders(scope=event)
                headers["X-Osmosis-Version-Status"] = status
                if message:
                    headers["X-Osmosis-Version-Message"] = message
            await send(event)

        if status == "unsupported":
            error = errors.UpgradeRequired(message, hint="pip install -U osmosis-ai", status=status)
            await error_response(error)(scope, receive, send_with_status)
        else:
            await self.app(scope, receive, send_with_status)


FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


def check_reader(request: Request, settings: PlatformSettings) -> None:
    token = settings.metrics_token.get_secret_value()
    if token:
        if not hmac.compare_digest(bearer(request).encode(), token.encode()):
            raise errors.AuthRequired(
                "this is not the token of /metrics", hint="it is OSMOSIS_METRICS_TOKEN of the platform"
            )
        return
    is_local = request.client is not None and is_loopback(request.client.host)
    public = bool(settings.public_url) and not is_loopback(parse_host(settings.public_url))
    if public or not is_local or any(name in request.headers for name in FORWARDED):
        message = "/metrics is read on this machine alone"
        raise errors.NotFound(message, hint="start the platform with OSMOSIS_METRICS_TOKEN=SECRET")


KIB, MIB = 1024, 1024 * 1024
UNKNOWN_BYTES = 64 * KIB
LINGER_BYTES = 8 * MIB
"""Read and dropped after a refusal: most clients read the answer only once they have sent everything."""

STREAMED = re.compile(r"^/(git/|api/objects/|api/jobs/[^/]+/(artifacts/|checkpoints/.))")
"""Paths whose credential is checked before the first byte, and whose bytes are counted where they are written."""
HOOKS = re.compile(r"^/hooks/")
LIMITS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"^/api/jobs/[^/]+/rollouts\Z"), 64 * MIB),  # one rollout with a long conversation
    (re.compile(r"^/api/jobs/"), 32 * MIB),
    (re.compile(r"^/api/cli/eval-runs/imports"), 64 * MIB),  # a manifest names every file
    (re.compile(r"^/api/cli/(device/|bootstrap\Z)"), UNKNOWN_BYTES),
    (re.compile(r"^/api/"), 4 * MIB),
    (re.compile(r"^/v1(beta)?/"), 16 * MIB),  # a long conversation, with images
    (HOOKS, MIB),  # a push of many commits; its signature is over all of it
    (re.compile(r""), UNKNOWN_BYTES),
)
_JOB = re.compile(r"^/api/jobs/([^/]+)/")


def limit_of(path: str) -> int | None:
    if STREAMED.match(path):
        return None
    return next(limit for pattern, limit in LIMITS if pattern.match(path))


@dataclass
class BodyLimits:
    app: ASGIApp
    platform: Platform

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = limit_of(scope["path"]) if scope["type"] == "http" else None
        if limit is None:
            await self.app(scope, receive, send)
            return
        body = _Body(self.platform, scope, receive, send, limit)
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and await body.refused(int(announced)):
            await body.refuse()
        else:
            await self.app(scope, body.receive, body.send)


@dataclass
class _Body:
    platform: Platform
    scope: Scope
    source: Receive
    target: Send
    limit: int
    size: int = 0
    known: bool = False
    refusal: errors.OsmosisError | None = None
    over: bool = False

    async def receive(self) -> Message:
        message = await self.source()
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            if await self.refused(self.size) and self.refusal is not None:
                raise HTTPException(self.refusal.http_status, self.refusal.message)
        return message

    async def refused(self, size: int) -> bool:
        if self.refusal is None and size > self.limit:
            self.refusal = errors.TooLarge(f"the request body is larger than {self.limit} bytes")
        elif self.refusal is None and size > UNKNOWN_BYTES and not self.known:
            try:
                await run_in_threadpool(_check_credential, self.platform, Request(self.scope))
                self.known = True
            except errors.OsmosisError as error:
                self.refusal = error
        return self.refusal is not None

    async def refuse(self) -> None:
        assert self.refusal is not None
        answer, send = error_response(self.refusal), self.target
        answer.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
        await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": True})
        enough = self.size + LINGER_BYTES
        while self.size < enough:
            message = await self.source()
            self.size += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(self, message: Message) -> None:
        if self.over:
            return
        if self.refusal is not None and message["type"] == "http.response.start":
            self.over = True
            await self.refuse()
        else:
            await self.target(message)


def _check_credential(platform: Platform, request: Request) -> None:
    if request.url.path.startswith("/api/jobs/"):
        match = _JOB.match(request.url.path)
        with platform.db.read() as session:
            leases.require_reader(session, match[1] if match else "", bearer(request))
        return
    if request.url.path.startswith("/v1"):
        with platform.db.read() as session:
            inference.identify_asker(session, inference.read_key(request), workspace=None, identity=None)
        return
    if HOOKS.match(request.url.path):
        return
    if not request.url.path.startswith("/api/"):
        raise errors.AuthRequired("this request is too large for somebody who has not logged in")
    with platform.db.read() as session:
        tokens.authenticate(session, bearer(request))
