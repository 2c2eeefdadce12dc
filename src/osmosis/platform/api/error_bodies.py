"""Every error leaves in the shape clients know: `error` and `message` (the same text), `code`, `issues`, `hint`,
and the id of the request, by which the log tells more.

A bug leaves as INTERNAL with the place of the log; its traceback stays in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from osmosis.base.full_disk import full_disk
from osmosis.base.json_types import JsonObject
from osmosis.errors import InternalError, OsmosisError, ValidationError, from_wire
from osmosis.platform.upkeep.log_lines import request_id

log = logging.getLogger("osmosis.platform")


def error_response(error: OsmosisError) -> JSONResponse:
    """The body and status of a known error."""
    wait = error.details.get("retry_after")
    return _answer(error.to_wire(), error.http_status, {} if wait is None else {"Retry-After": str(wait)})


def _answer(body: JsonObject, status: int, headers: Mapping[str, str] | None) -> JSONResponse:
    if known := request_id.get():
        body, headers = {**body, "request_id": known}, {**(headers or {}), "X-Request-ID": known}
    return JSONResponse(body, status_code=status, headers=headers)


def known_error(request: Request, error: OsmosisError) -> JSONResponse:
    """The answer to a request that ended so; the log is told of what is our fault."""
    if error.http_status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error)
    return error_response(error)


def explained(error: Exception) -> OsmosisError | None:
    """What is shown of something that is nobody's mistake and no bug; None for a bug."""
    return full_disk(error, where="the platform")


def handle_errors(app: FastAPI) -> None:
    """Install the handlers."""

    @app.exception_handler(OsmosisError)
    async def known(request: Request, error: OsmosisError) -> JSONResponse:
        return known_error(request, error)

    @app.exception_handler(OSError)
    async def refused(request: Request, error: OSError) -> Response:
        return await bug(request, error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        issues = [
            {"key": ".".join(str(part) for part in found["loc"][1:]) or str(found["loc"][0]), "message": found["msg"]}
            for found in error.errors()
        ]
        text = "; ".join(f"{issue['key']}: {issue['message']}" for issue in issues[:5])
        return error_response(ValidationError(f"the request is malformed: {text}", issues=issues))

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        message = error.detail if error.status_code != 404 else f"no such path: {request.url.path}"
        rebuilt = from_wire(error.status_code, {"message": str(message)})
        body = {"error": rebuilt.message, "message": rebuilt.message, "code": rebuilt.code}
        return _answer(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        if known := explained(error):
            return known_error(request, known)
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(
            InternalError(
                f"internal error in {request.method} {request.url.path}: {type(error).__name__}",
                hint="see the platform's log: osmosis platform logs",
            )
        )
