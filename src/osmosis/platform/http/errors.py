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


def log_error(request: Request, error: Exception) -> OsmosisError:
    """Log what is not the caller's mistake, a bug with its traceback, and return what to show of it."""
    about, explained = f"{request.method} {request.url.path}", error if isinstance(error, OsmosisError) else None
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
