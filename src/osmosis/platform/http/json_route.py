"""Read JSON bodies strictly, as they can be stored; write answers with only the keys that were set."""

import json
import logging
import math
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, get_args, get_type_hints

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from osmosis.base.files import find_full_disk
from osmosis.base.jsonable import JsonObject
from osmosis.errors import InternalError, OsmosisError, ValidationError, from_wire
from osmosis.platform.db import find_unavailable
from osmosis.platform.maintenance.telemetry import request_id
from osmosis.records.base import Record

log = logging.getLogger("osmosis.platform")

MAX_DEPTH = 200
"""JSON writers end at 254 levels, and what is stored is nested a few more."""
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


class JsonRoute(APIRoute):
    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        # Records build their schemas late; FastAPI's checks warn unless a route's are built when it is declared.
        for hint in (*get_type_hints(endpoint).values(), options.get("response_model")):
            for record in _iterate_records(hint):
                record.model_config["defer_build"] = False
        if isinstance(options.get("response_class"), DefaultPlaceholder):
            options["response_class"] = JsonResponse
        super().__init__(path, endpoint, **{**options, "response_model_exclude_unset": True})

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


def _iterate_records(hint: object) -> Iterator[type[Record]]:
    if isinstance(hint, type) and issubclass(hint, Record):
        yield hint
    for part in get_args(hint):
        yield from _iterate_records(part)


def error_response(error: OsmosisError) -> JSONResponse:
    wait = error.details.get("retry_after")
    return _answer(error.to_wire(), error.http_status, {} if wait is None else {"Retry-After": str(wait)})


def _answer(body: JsonObject, status: int, headers: Mapping[str, str] | None) -> JSONResponse:
    if id_ := request_id.get():
        body, headers = {**body, "request_id": id_}, {**(headers or {}), "X-Request-ID": id_}
    return JSONResponse(body, status_code=status, headers=headers)


def log_error(request: Request, error: Exception) -> OsmosisError:
    """Log what is not the caller's mistake, a bug with its traceback, and return what to show of it."""
    path = "/shared/..." if request.url.path.startswith("/shared/") else request.url.path  # a link is a secret
    about, explained = f"{request.method} {path}", error if isinstance(error, OsmosisError) else None
    explained = explained or find_full_disk(error, where="the platform") or find_unavailable(error)
    if explained is None:
        log.exception("%s failed", about, exc_info=error)
        message = f"internal error in {about}: {type(error).__name__}"
        return InternalError(message, hint="see the platform's log: osmosis platform logs")
    if explained.http_status >= 500:
        log.error("%s: %s", about, explained)
    return explained


def handle_errors(app: FastAPI) -> None:
    # What only `Exception` catches is raised again after the answer, and uvicorn then closes the connection: right for
    # a bug, not for a disk that is full.
    @app.exception_handler(OsmosisError)
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
        return error_response(ValidationError(f"the request is malformed: {text}", issues=issues))

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        message = error.detail if error.status_code != 404 else f"no such path: {request.url.path}"
        rebuilt = from_wire(error.status_code, {"message": str(message)})
        body = {"error": rebuilt.message, "message": rebuilt.message, "code": rebuilt.code}
        return _answer(body, error.status_code, error.headers)
