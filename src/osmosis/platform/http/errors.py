"""Error answers: `error` and `message` (the same text), `code`, `issues`, `hint`, request id. The traceback of a bug
stays in the log."""

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from osmosis.base.files import find_full_disk
from osmosis.base.jsonable import JsonObject
from osmosis.errors import InternalError, OsmosisError, ValidationError, from_wire
from osmosis.platform.db import find_unavailable
from osmosis.platform.maintenance.logging import request_id

log = logging.getLogger("osmosis.platform")


def error_response(error: OsmosisError) -> JSONResponse:
    wait = error.details.get("retry_after")
    return _answer(error.to_wire(), error.http_status, {} if wait is None else {"Retry-After": str(wait)})


def _answer(body: JsonObject, status: int, headers: Mapping[str, str] | None) -> JSONResponse:
    if id_ := request_id.get():
        body, headers = {**body, "request_id": id_}, {**(headers or {}), "X-Request-ID": id_}
    return JSONResponse(body, status_code=status, headers=headers)


def known_error(request: Request, error: OsmosisError) -> JSONResponse:
    if error.http_status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error)
    return error_response(error)


def explained(error: Exception) -> OsmosisError | None:
    """Return the error for an exception that is neither a mistake nor a bug; None for a bug."""
    return find_full_disk(error, where="the platform") or find_unavailable(error)


def handle_errors(app: FastAPI) -> None:
    @app.exception_handler(OsmosisError)
    async def known(request: Request, error: OsmosisError) -> JSONResponse:
        return known_error(request, error)

    # What only `Exception` catches is raised again after the answer, and uvicorn then closes the connection: right for
    # a bug, not for a disk that is full.
    @app.exception_handler(OSError)
    @app.exception_handler(SQLAlchemyError)
    async def refused(request: Request, error: Exception) -> Response:
        return await bug(request, error)

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

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        if explanation := explained(error):
            return known_error(request, explanation)
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(
            InternalError(
                f"internal error in {request.method} {request.url.path}: {type(error).__name__}",
                hint="see the platform's log: osmosis platform logs",
            )
        )
